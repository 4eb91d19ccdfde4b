// From files to raw records (reading, one thread)
// and from raw records to documents (parsing, many threads).
//
// A record is what may become one document: a line of JSON, a row of a table, or of a text file the
// whole, a line or a paragraph. Reading only finds the borders between records; whatever needs a
// look at the content is left to parsing, so that it spreads over the workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "prepare/input_files.h"

namespace deltatrain::prepare {

enum class TextDocuments : uint8_t {
  kFile,
  kLine,
  kParagraph
};  // what is one document in a text file
enum class OnInvalidUtf8 : uint8_t { kStop, kReplace, kSkip };
enum class OnBadDocument : uint8_t { kStop, kSkip };
enum class OnEmptyText : uint8_t { kSkip, kKeep };  // kept: tokenized like any other

struct RecordOptions {
  std::string text_column = "text";
  TextDocuments text_documents = TextDocuments::kFile;
  OnInvalidUtf8 on_invalid_utf8 = OnInvalidUtf8::kStop;
  OnBadDocument on_bad_document = OnBadDocument::kStop;
  OnEmptyText on_empty_text = OnEmptyText::kSkip;
  int64_t max_document_bytes = int64_t{1} << 30;
};

// A part of one file: the records that begin in [begin, end), of a table those of the groups that
// do.
struct FileRange {
  const InputFile* file = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

// A row's text within a block's bytes.
struct RowText {
  size_t begin = 0;
  int64_t bytes = 0;       // -1: null
  bool oversized = false;  // larger than allowed; not in the block
};

// Whole records of one file.
struct Block {
  FileRange range;
  std::string bytes;
  std::vector<RowText> rows;  // of tables
  int64_t first_row = 0;      // of the file
  int64_t lines_before = 0;   // between the range's begin and the block
  int64_t file_bytes = 0;     // of the file itself, that were read for this block
  bool oversized = false;     // one record larger than allowed, whose bytes are not here
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;
  virtual bool next(
      Block& block) = 0;  // false at the end of the range; the memory of block.bytes is used again
};

// Blocks of about `block_bytes`, or one record where that is larger.
std::unique_ptr<BlockReader> open_block_reader(const FileRange& range, const RecordOptions& options,
                                               int64_t block_bytes);

// FormatError when a table is damaged or has no such column of text, so that it is known at once.
void check_table(const InputFile& file, const RecordOptions& options);

// Whether ranges other than the whole file are possible.
bool can_split(const InputFile& file, const RecordOptions& options);

// What became of records, by name: "empty", "missing key", "null", "not text", "broken JSON",
// "binary", "oversized", "invalid UTF-8" for skipped ones.
using Counts = std::map<std::string, int64_t>;

// Receives the records of a block in order.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void document(std::string_view text) = 0;  // well-formed UTF-8; empty where that is kept
  virtual void skipped(const char* reason) = 0;
  virtual void replaced(const char* what, int64_t count) = 0;
};

// For one thread at a time; keeps scratch memory between calls.
class RecordParser {
 public:
  explicit RecordParser(RecordOptions options);
  ~RecordParser();
  RecordParser(const RecordParser&) = delete;
  RecordParser& operator=(const RecordParser&) = delete;

  // Throws FormatError "FILE:LINE: what: expected,
  // got" for a bad record where the options say stop. The bytes of a block that is one large record may be
  // given back on the way.
  void parse(Block& block, DocumentSink& sink);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltatrain::prepare
