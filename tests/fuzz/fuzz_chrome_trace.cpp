#include "fuzz/hostile_file.h"
#include "report/chrome_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static deltatrain::fuzz::HostileFile file;
  return deltatrain::fuzz::refuse_or_accept([&] {
    const std::filesystem::path path = file.fill(data, size);
    deltatrain::report::merge_chrome_traces({path, path});
  });
}
