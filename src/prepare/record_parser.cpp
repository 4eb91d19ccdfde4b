#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "prepare/json_field.h"
#include "prepare/records.h"
#include "text/utf8.h"

namespace deltatrain::prepare {

namespace {

constexpr size_t kMaxKeptBytes = size_t{1}
                                 << 26;  // scratch beyond this is given back after a large record

std::string_view without_carriage_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

bool is_blank(std::string_view line) {
  return std::all_of(line.begin(), line.end(), is_json_space);
}

// Lines of a file before this byte. Only asked on the way to an error message.
int64_t count_lines(const FileRange& range, int64_t end) {
  const std::unique_ptr<ByteStream> stream =
      open_byte_stream(range.file->path, range.file->compression);
  std::string buffer(size_t{1} << 20, '\0');
  int64_t lines = 0;
  while (end > 0) {
    const size_t count =
        stream->read(buffer.data(), std::min(buffer.size(), static_cast<size_t>(end)));
    if (count == 0) break;
    lines += std::count(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(count), '\n');
    end -= static_cast<int64_t>(count);
  }
  return lines;
}

std::string quoted_bytes(std::string_view text, size_t offset) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = offset; i < std::min(text.size(), offset + text::ill_formed_length(text, offset));
       ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    out += std::string(out.empty() ? "" : " ") + "0x" + kDigits[byte >> 4] + kDigits[byte & 15];
  }
  return out;
}

int hex_value(std::string_view digits) {
  int value = 0;
  if (digits.size() < 4) return -1;
  for (const char c : digits.substr(0, 4)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

// Writes \ufffd over \u escapes of surrogates without their other half, in place. Returns how many.
int64_t replace_lone_surrogates(std::string& json) {
  int64_t replaced = 0;
  const std::string_view view = json;
  for (size_t i = 0; i + 1 < json.size(); ++i) {
    if (json[i] != '\\') continue;
    ++i;
    if (json[i] != 'u') continue;
    const int value = hex_value(view.substr(i + 1));
    if (value < 0xd800 || value > 0xdfff) continue;
    const std::string_view after = view.substr(std::min(i + 5, json.size()));
    const int low = after.starts_with("\\u") ? hex_value(after.substr(2)) : -1;
    if (value < 0xdc00 && low >= 0xdc00 && low <= 0xdfff) {
      i += 10;
      continue;
    }
    json.replace(i + 1, 4, "fffd");
    ++replaced;
  }
  return replaced;
}

// A record that cannot become a document.
struct Problem {
  const char* reason = nullptr;  // as Counts names it
  std::string what;
  std::string expected;
  std::string got;
};

}  // namespace

struct RecordParser::State {
  RecordOptions options;
  std::unique_ptr<JsonFieldReader> json = make_json_field_reader();
  std::string scratch;
  Block* block = nullptr;
  int64_t row = 0;  // within a block of a table
  DocumentSink* sink = nullptr;

  void handle(const Problem& problem, size_t offset) {
    const bool stop = std::string_view(problem.reason) == "invalid UTF-8"
                          ? options.on_invalid_utf8 == OnInvalidUtf8::kStop
                          : options.on_bad_document == OnBadDocument::kStop;
    if (!stop) {
      sink->skipped(problem.reason);
      return;
    }
    if (is_table(block->range.file->format)) {
      throw FormatError(
          error_text(block->range.file->path + ": row " + std::to_string(block->first_row + row),
                     problem.what, problem.expected, problem.got));
    }
    const auto begin = block->bytes.begin();
    const int64_t line = count_lines(block->range, block->range.begin) + block->lines_before + 1 +
                         std::count(begin, begin + static_cast<std::ptrdiff_t>(offset), '\n');
    throw FormatError(error_text(block->range.file->path + ":" + std::to_string(line), problem.what,
                                 problem.expected, problem.got));
  }

  // Refuses, replaces or passes on; `text` lies at `offset` of the block.
  void emit(std::string_view text, size_t offset, bool known_well_formed) {
    if (text.empty() && options.on_empty_text == OnEmptyText::kSkip) {
      sink->skipped("empty");
      return;
    }
    const size_t bad =
        known_well_formed ? std::string_view::npos : text::find_ill_formed_utf8(text);
    if (bad == std::string_view::npos) {
      sink->document(text);
    } else if (options.on_invalid_utf8 == OnInvalidUtf8::kReplace) {
      int64_t replaced = 0;
      const std::string repaired = text::replace_ill_formed_utf8(text, &replaced);
      sink->replaced("invalid UTF-8", replaced);
      sink->document(repaired);
    } else {
      handle({"invalid UTF-8", "byte " + std::to_string(bad) + " of the text", "UTF-8",
              quoted_bytes(text, bad)},
             offset + bad);
    }
  }

  void text_record(std::string_view text, size_t offset) {
    if (static_cast<int64_t>(text.size()) > options.max_document_bytes)
      return handle_oversized(text.size(), offset);
    const size_t zero = text.find('\0');
    if (zero != std::string_view::npos) {
      handle({"binary", "byte " + std::to_string(zero) + " of the text", "text",
              "a zero byte: a binary file?"},
             offset + zero);
      return;
    }
    if (text.find("\r\n") == std::string_view::npos) return emit(text, offset, false);
    std::string lines;
    lines.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') lines.push_back(text[i]);
    }
    emit(lines, offset, false);
  }

  void table_rows() {
    for (row = 0; row < static_cast<int64_t>(block->rows.size()); ++row) {
      const RowText& text = block->rows[static_cast<size_t>(row)];
      if (text.bytes < 0) {
        handle({"null", "column " + options.text_column, "a text", "null"}, 0);
      } else if (text.oversized) {
        handle_oversized(static_cast<size_t>(text.bytes), 0);
      } else {
        emit(std::string_view(block->bytes).substr(text.begin, static_cast<size_t>(text.bytes)), 0,
             false);
      }
    }
  }

  void handle_oversized(size_t bytes, size_t offset) {
    handle(
        {"oversized", "record", "at most " + std::to_string(options.max_document_bytes) + " bytes",
         bytes > 0 ? std::to_string(bytes) + " bytes" : "more"},
        offset);
  }

  void json_record(std::string_view line, size_t offset) {
    if (static_cast<int64_t>(line.size()) > options.max_document_bytes)
      return handle_oversized(line.size(), offset);
    const bool fills_block = offset == 0 && line.size() + 1 >= block->bytes.size();
    using Outcome = JsonField::Outcome;
    JsonField field = json->read(line, options.text_column);
    if (field.outcome == Outcome::kIllFormedUtf8) {
      const size_t bad = text::find_ill_formed_utf8(line);
      if (options.on_invalid_utf8 != OnInvalidUtf8::kReplace) {
        handle({"invalid UTF-8", "byte " + std::to_string(bad) + " of the line", "UTF-8",
                quoted_bytes(line, bad)},
               offset + bad);
        return;
      }
      int64_t replaced = 0;
      scratch = text::replace_ill_formed_utf8(line, &replaced);
      sink->replaced("invalid UTF-8", replaced);
      field = read_scratch();
      line = scratch;  // which reading may have moved
    }
    if (field.outcome == Outcome::kBadString) {
      // Python's json reads unpaired surrogates; they stand for no character, so they become
      // U+FFFD.
      std::string repaired(line);
      const int64_t replaced = replace_lone_surrogates(repaired);
      if (replaced > 0) {
        sink->replaced("unpaired surrogates", replaced);
        scratch = std::move(repaired);
        field = read_scratch();
        line = scratch;
      }
    }
    const std::string what = "key " + options.text_column;
    switch (field.outcome) {
      case Outcome::kText:
        break;
      case Outcome::kIllFormedUtf8:
      case Outcome::kBadString:
      case Outcome::kBroken:
        handle({"broken JSON", "", "a JSON object", "broken JSON: " + field.got}, offset);
        return;
      case Outcome::kNotAnObject:
        handle({"broken JSON", "", "a JSON object", field.got}, offset);
        return;
      case Outcome::kMissing:
        handle({"missing key", what, "a string",
                field.got.empty() ? "an object without keys" : "only the keys " + field.got},
               offset);
        return;
      case Outcome::kNull:
        handle({"null", what, "a string", field.got}, offset);
        return;
      case Outcome::kNotText:
        handle({"not text", what, "a string", field.got}, offset);
        return;
    }
    const bool large = line.size() > kMaxKeptBytes;
    // The text lies in the reader's memory: that of the line is not needed beside it.
    if (large && fills_block) std::string().swap(block->bytes);  // = {} would keep the memory
    emit(field.text, offset, true);
    if (large) {
      json->release();
      std::string().swap(scratch);
    }
  }

  JsonField read_scratch() {
    const size_t bytes = scratch.size();
    scratch.append(kJsonPadding, ' ');
    JsonField field = json->read(std::string_view(scratch).substr(0, bytes), options.text_column);
    scratch.resize(bytes);
    return field;
  }

  template <class Visit>
  void for_each_line(std::string_view text, Visit visit) {
    size_t begin = 0;
    while (begin < text.size()) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      visit(text.substr(begin, end - begin), begin);
      begin = end + 1;
    }
  }

  void paragraphs(std::string_view text) {
    size_t begin = std::string_view::npos;  // of the paragraph under way
    size_t end = 0;
    for_each_line(text, [&](std::string_view line, size_t offset) {
      if (!without_carriage_return(line).empty()) {
        if (begin == std::string_view::npos) begin = offset;
        end = offset + without_carriage_return(line).size();
      } else if (begin != std::string_view::npos) {
        text_record(text.substr(begin, end - begin), begin);
        begin = std::string_view::npos;
      }
    });
    if (begin != std::string_view::npos) text_record(text.substr(begin, end - begin), begin);
  }
};

RecordParser::RecordParser(RecordOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}

RecordParser::~RecordParser() = default;

void RecordParser::parse(Block& block, DocumentSink& sink) {
  State& state = *state_;
  state.block = &block;
  state.sink = &sink;
  if (is_table(block.range.file->format)) {
    state.table_rows();
    return;
  }
  if (block.oversized) {
    state.handle_oversized(0, 0);
    return;
  }
  if (block.range.file->format == FileFormat::kJsonLines) {
    std::string_view text = block.bytes;
    std::string padded;
    if (block.bytes.capacity() - block.bytes.size() < kJsonPadding) {
      padded.reserve(text.size() + kJsonPadding);
      padded = text;
      text = padded;
    }
    state.for_each_line(text, [&](std::string_view line, size_t offset) {
      if (!is_blank(line)) state.json_record(line, offset);
    });
    return;
  }
  switch (state.options.text_documents) {
    case TextDocuments::kFile:
      state.text_record(block.bytes, 0);
      break;
    case TextDocuments::kLine:
      state.for_each_line(block.bytes, [&](std::string_view line, size_t offset) {
        if (!without_carriage_return(line).empty())
          state.text_record(without_carriage_return(line), offset);
      });
      break;
    case TextDocuments::kParagraph:
      state.paragraphs(block.bytes);
      break;
  }
}

}  // namespace deltatrain::prepare
