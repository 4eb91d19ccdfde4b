#include <unistd.h>

#include <fstream>
#include <vector>

#include "formats/indexed_dataset.h"
#include "fuzz/hostile_file.h"

// The input is an index; the tokens beside it are 4096 bytes of zeros.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string prefix = [] {
    std::string folder = (std::filesystem::temp_directory_path() / "fuzz-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    std::ofstream(folder + "/x.bin", std::ios::binary) << std::string(4096, '\0');
    return folder + "/x";
  }();
  std::ofstream(prefix + ".idx", std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  return deltatrain::fuzz::refuse_or_accept([] {
    const deltatrain::formats::IndexedDataset dataset(prefix);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < dataset.num_sequences() && i < 64; ++i) {
      tokens.resize(static_cast<size_t>(dataset.length(i)));
      dataset.read(dataset.first_token(i), tokens, 0);
    }
    for (int64_t i = 0; i <= dataset.num_documents() && i < 64; ++i)
      (void)dataset.document_begin(i);
  });
}
