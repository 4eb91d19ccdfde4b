#include "fuzz/hostile_file.h"
#include "text/tokenizer.h"

// The binary forms: SentencePiece's and Llama 3's own tokenizer.model.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static deltatrain::fuzz::HostileFile file;
  return deltatrain::fuzz::refuse_or_accept([&] {
    using namespace deltatrain::text;
    const auto tokenizer = Tokenizer::load(file.fill(data, size));
    const auto ids = tokenizer.encode("abba caf\xc3\xa9  ab", AddSpecialTokens::kYes);
    (void)tokenizer.decode(ids, SkipSpecialTokens::kNo);
  });
}
