#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "formats/text_column.h"
#include "prepare/records.h"

namespace deltatrain::prepare {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kReadBytes = size_t{1} << 18;
constexpr size_t kMaxRowsInBlock = size_t{1} << 16;  // where texts are short or empty

enum class Border { kNone, kLine, kBlankLine };  // what separates records

Border border_of(const InputFile& file, const RecordOptions& options) {
  if (file.format == FileFormat::kJsonLines) return Border::kLine;
  switch (options.text_documents) {
    case TextDocuments::kFile:
      return Border::kNone;
    case TextDocuments::kLine:
      return Border::kLine;
    case TextDocuments::kParagraph:
      return Border::kBlankLine;
  }
  return Border::kNone;
}

// Whether the newline at `i` ends a blank line.
bool ends_blank_line(std::string_view text, size_t i) {
  if (i == 0) return false;
  if (text[i - 1] == '\n') return true;
  return i >= 2 && text[i - 1] == '\r' && text[i - 2] == '\n';
}

// Where a record can end: just past the last border in text[0, limit), or npos.
size_t last_border(std::string_view text, size_t limit, Border border) {
  size_t end = limit;
  while (border != Border::kNone && end > 0) {
    const void* found = ::memrchr(text.data(), '\n', end);
    if (found == nullptr) break;
    const auto i = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    if (border == Border::kLine || ends_blank_line(text, i)) return i + 1;
    end = i;
  }
  return std::string_view::npos;
}

// Just past the first border whose newline lies at or after `from`, or npos.
size_t first_border(std::string_view text, size_t from, Border border) {
  while (border != Border::kNone) {
    const size_t i = text.find('\n', from);
    if (i == std::string_view::npos) break;
    if (border == Border::kLine || ends_blank_line(text, i)) return i + 1;
    from = i + 1;
  }
  return std::string_view::npos;
}

class StreamBlockReader final : public BlockReader {
 public:
  StreamBlockReader(const FileRange& range, const RecordOptions& options, int64_t block_bytes)
      : range_(range),
        border_(border_of(*range.file, options)),
        block_bytes_(block_bytes),
        max_bytes_(options.max_document_bytes),
        position_(range.begin),
        end_(range.end == range.file->bytes ? std::numeric_limits<int64_t>::max() : range.end) {
    if (range.begin > 0) {
      // The line that is under way at the byte before belongs to the range before.
      stream_ = open_byte_stream(range.file->path, range.file->compression, range.begin - 1);
      position_ = range.begin - 1;
      skip_line();
      lines_ = position_ > range.begin ? 1 : 0;
    } else {
      stream_ = open_byte_stream(range.file->path, range.file->compression);
      while (buffer_.size() < kByteOrderMark.size() && fill()) {
      }
      if (buffer_.starts_with(kByteOrderMark)) consume(kByteOrderMark.size());
    }
    reported_position_ = range.begin;
  }

  bool next(Block& block) override {
    if (position_ >= end_) return false;
    const auto limit = static_cast<size_t>(std::min(block_bytes_, end_ - position_));
    while (buffer_.size() < limit && fill()) {
    }
    if (buffer_.empty()) return false;

    block.range = range_;
    block.lines_before = lines_;
    block.oversized = false;
    if (at_end_ && buffer_.size() <= limit) {
      take(buffer_.size(), block);
      return true;
    }
    size_t cut = last_border(buffer_, limit, border_);
    size_t searched = limit;
    while (cut == std::string_view::npos) {
      // One record fills the buffer: read on to its end.
      cut = first_border(buffer_, searched - 1, border_);
      if (static_cast<int64_t>(std::min(cut, buffer_.size())) > max_bytes_) {
        skip_oversized(block);
        return true;
      }
      searched = buffer_.size();
      if (cut == std::string_view::npos && !fill()) cut = buffer_.size();
    }
    take(cut, block);
    return true;
  }

 private:
  bool fill() {
    if (at_end_) return false;
    const size_t before = buffer_.size();
    // Larger steps as a record grows, so that its bytes are moved a few times only.
    const size_t step = std::max(kReadBytes, before / 2);
    buffer_.resize(before + step);
    const size_t count = stream_->read(buffer_.data() + before, step);
    buffer_.resize(before + count);
    at_end_ = count < step;
    return count > 0;
  }

  void consume(size_t bytes) {
    buffer_.erase(0, bytes);
    position_ += static_cast<int64_t>(bytes);
  }

  void skip_line() {
    while (true) {
      const size_t newline = buffer_.find('\n');
      if (newline != std::string::npos) {
        consume(newline + 1);
        return;
      }
      consume(buffer_.size());
      if (!fill()) return;
    }
  }

  void count_file_bytes(Block& block) {
    // What a plain file's buffer still holds has not been used.
    int64_t now = stream_->file_position();
    if (range_.file->compression == Compression::kNone) now -= static_cast<int64_t>(buffer_.size());
    block.file_bytes = std::max<int64_t>(0, std::min(now, range_.end) - reported_position_);
    reported_position_ += block.file_bytes;
  }

  void take(size_t cut, Block& block) {
    const auto begin = buffer_.begin();
    lines_ += std::count(begin, begin + static_cast<std::ptrdiff_t>(cut), '\n');
    block.bytes.assign(buffer_, cut);  // what remains, in the block's memory
    block.bytes.swap(buffer_);
    block.bytes.resize(cut);
    position_ += static_cast<int64_t>(cut);
    count_file_bytes(block);
  }

  // Drops a record that is too large, without ever holding it whole.
  void skip_oversized(Block& block) {
    block.oversized = true;
    block.bytes.clear();
    while (true) {
      const size_t cut = first_border(buffer_, 0, border_);
      const size_t drop =
          cut != std::string_view::npos ? cut : (buffer_.size() > 2 ? buffer_.size() - 2 : 0);
      const auto begin = buffer_.begin();
      lines_ += std::count(begin, begin + static_cast<std::ptrdiff_t>(drop), '\n');
      consume(drop);
      if (cut != std::string_view::npos) break;
      if (!fill()) {
        consume(buffer_.size());
        break;
      }
    }
    count_file_bytes(block);
  }

  const FileRange range_;
  const Border border_;
  const int64_t block_bytes_;
  const int64_t max_bytes_;
  int64_t position_;  // of the buffer's first byte, decompressed
  const int64_t end_;
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  bool at_end_ = false;
  int64_t lines_ = 0;
  int64_t reported_position_ = 0;
};

std::unique_ptr<formats::TextColumn> open_table(const InputFile& file,
                                                const RecordOptions& options) {
  return file.format == FileFormat::kArrow
             ? formats::open_arrow_text(file.path, options.text_column)
             : formats::open_parquet_text(file.path, options.text_column);
}

class TableBlockReader final : public BlockReader {
 public:
  TableBlockReader(const FileRange& range, const RecordOptions& options, int64_t block_bytes)
      : range_(range),
        table_(open_table(*range.file, options)),
        block_bytes_(block_bytes),
        max_bytes_(options.max_document_bytes) {}

  bool next(Block& block) override {
    block.range = range_;
    block.bytes.clear();
    block.rows.clear();
    block.file_bytes = 0;
    block.first_row = row_;
    while (static_cast<int64_t>(block.bytes.size()) < block_bytes_ &&
           block.rows.size() < kMaxRowsInBlock) {
      if (next_row_ < rows_.size()) {
        take(rows_[next_row_++], block);
        ++row_;
        continue;
      }
      next_row_ = 0;
      if (in_group_ && table_->next(rows_)) continue;
      in_group_ = false;
      rows_.clear();
      if (!block.rows.empty()) break;  // a block's rows follow each other
      if (!select_next_group()) break;
      block.first_row = row_;
    }
    block.file_bytes = std::exchange(file_bytes_, 0);
    return !block.rows.empty();
  }

 private:
  bool select_next_group() {
    while (next_group_ < table_->num_groups() && !begins_here(table_->group(next_group_)))
      ++next_group_;
    if (next_group_ == table_->num_groups()) return false;
    const formats::RowGroup group = table_->group(next_group_);
    table_->select(next_group_++);
    row_ = group.first_row;
    file_bytes_ += group.bytes;
    in_group_ = true;
    return true;
  }

  bool begins_here(const formats::RowGroup& group) const {
    return group.begin >= range_.begin && group.begin < range_.end;
  }

  void take(const std::optional<std::string_view>& text, Block& block) const {
    RowText row{block.bytes.size(), -1, false};
    if (text.has_value()) {
      row.bytes = static_cast<int64_t>(text->size());
      row.oversized = row.bytes > max_bytes_;
      if (!row.oversized) block.bytes += *text;
    }
    block.rows.push_back(row);
  }

  const FileRange range_;
  const std::unique_ptr<formats::TextColumn> table_;
  const int64_t block_bytes_;
  const int64_t max_bytes_;
  int64_t next_group_ = 0;
  bool in_group_ = false;
  std::vector<std::optional<std::string_view>> rows_;
  size_t next_row_ = 0;
  int64_t row_ = 0;         // of the file, the next one
  int64_t file_bytes_ = 0;  // read and not yet counted in a block
};

}  // namespace

void check_table(const InputFile& file, const RecordOptions& options) { open_table(file, options); }

bool can_split(const InputFile& file, const RecordOptions& options) {
  if (is_table(file.format)) return true;
  return file.compression == Compression::kNone && border_of(file, options) == Border::kLine;
}

std::unique_ptr<BlockReader> open_block_reader(const FileRange& range, const RecordOptions& options,
                                               int64_t block_bytes) {
  if (is_table(range.file->format))
    return std::make_unique<TableBlockReader>(range, options, block_bytes);
  return std::make_unique<StreamBlockReader>(range, options, block_bytes);
}

}  // namespace deltatrain::prepare
