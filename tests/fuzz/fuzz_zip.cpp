#include "formats/zip_archive.h"
#include "fuzz/hostile_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static deltatrain::fuzz::HostileFile file;
  return deltatrain::fuzz::refuse_or_accept([&] {
    const deltatrain::formats::ZipArchive archive(file.fill(data, size));
    for (const auto& [name, member] : archive.members()) archive.check_crc32(name);
  });
}
