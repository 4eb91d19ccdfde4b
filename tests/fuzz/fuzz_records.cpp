#include "fuzz/hostile_file.h"
#include "prepare/records.h"
#include "text/utf8.h"

namespace {

class Sink final : public deltatrain::prepare::DocumentSink {
 public:
  void document(std::string_view text) override {
    if (deltatrain::text::find_ill_formed_utf8(text) != std::string_view::npos) std::abort();
  }
  void skipped(const char*) override {}
  void replaced(const char*, int64_t) override {}
};

}  // namespace

// Lines of JSON, read in blocks of a few bytes, with every rule for what is wrong with them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltatrain::prepare;
  static deltatrain::fuzz::HostileFile hostile;
  InputFile file;
  file.path = hostile.fill(data, size).string();
  file.format = FileFormat::kJsonLines;
  file.bytes = static_cast<int64_t>(size);
  for (const OnBadDocument bad : {OnBadDocument::kStop, OnBadDocument::kSkip}) {
    RecordOptions options;
    options.on_bad_document = bad;
    options.on_invalid_utf8 = bad == OnBadDocument::kStop ? OnInvalidUtf8::kStop : OnInvalidUtf8::kReplace;
    options.max_document_bytes = 1000;
    (void)deltatrain::fuzz::refuse_or_accept([&] {
      RecordParser parser(options);
      Sink sink;
      const auto reader = open_block_reader({&file, 0, file.bytes}, options, 64);
      for (Block block; reader->next(block);) parser.parse(block, sink);
    });
  }
  return 0;
}
