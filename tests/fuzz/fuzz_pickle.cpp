#include "formats/pickle.h"
#include "fuzz/hostile_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return deltatrain::fuzz::refuse_or_accept([&] {
    const deltatrain::formats::PickleTree tree(std::as_bytes(std::span(data, size)), "fuzz");
    (void)tree.root().find("model");
  });
}
