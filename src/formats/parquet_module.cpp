// Parquet through Arrow C++: its column readers, which hold one page at a time. A library of its
// own, which parquet_text.cpp loads: see there.
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>

#include "base/error.h"
#include "formats/text_column.h"

namespace deltatrain::formats {

namespace {

constexpr int64_t kRowsAtOnce = 1024;
constexpr int64_t kBufferBytes = int64_t{1} << 20;
constexpr int64_t kMagicBytes = 4;

// Messages of the library go over several lines at times.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

class ParquetText final : public TextColumn {
 public:
  ParquetText(const std::filesystem::path& path, const std::string& column)
      : path_(path.string()), column_name_(column) {
    guarded("footer", [&] {
      parquet::ReaderProperties properties;
      properties.enable_buffered_stream();
      properties.set_buffer_size(kBufferBytes);
      reader_ = parquet::ParquetFileReader::OpenFile(path_, /*memory_map=*/false, properties);
      find_column();
      find_groups();
    });
  }

  int64_t num_groups() const override { return static_cast<int64_t>(groups_.size()); }
  RowGroup group(int64_t index) const override { return groups_[static_cast<size_t>(index)]; }

  void select(int64_t index) override {
    selected_ = index;
    rows_read_ = 0;
    guarded(group_name(), [&] {
      values_ = nullptr;
      group_reader_ = reader_->RowGroup(static_cast<int>(index));
      values_ = std::dynamic_pointer_cast<parquet::ByteArrayReader>(group_reader_->Column(column_));
    });
  }

  bool next(std::vector<std::optional<std::string_view>>& rows) override {
    rows.clear();
    guarded(group_name(), [&] { read(rows); });
    const int64_t want = group(selected_).num_rows;
    if (rows_read_ > want || (rows.empty() && rows_read_ != want)) {
      refuse(group_name(), std::to_string(want) + " rows as the footer says",
             rows.empty() ? std::to_string(rows_read_) : "more");
    }
    return !rows.empty();
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& expected,
                           const std::string& got) const {
    throw FormatError(error_text(path_, what, expected, got));
  }

  // Errors of the library as ours, with the place.
  template <class Call>
  void guarded(const std::string& what, Call call) const {
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      refuse(what, "a whole Parquet file", one_line(error.what()));
    }
  }

  std::string group_name() const {
    return "row group " + std::to_string(selected_) + ", column " + column_name_;
  }

  void find_column() {
    const parquet::SchemaDescriptor& schema = *reader_->metadata()->schema();
    column_ = schema.ColumnIndex(column_name_);
    const std::string what = "column " + column_name_;
    if (column_ < 0) {
      std::string names;
      for (int i = 0; i < schema.num_columns() && names.size() < 200; ++i)
        names += (names.empty() ? "" : ", ") + schema.Column(i)->path()->ToDotString();
      refuse(what, "this column", "only " + names);
    }
    const parquet::ColumnDescriptor& column = *schema.Column(column_);
    const bool text = column.physical_type() == parquet::Type::BYTE_ARRAY &&
                      (column.converted_type() == parquet::ConvertedType::UTF8 ||
                       (column.logical_type() != nullptr && column.logical_type()->is_string()));
    if (!text || column.max_repetition_level() > 0) {
      std::string type = parquet::TypeToString(column.physical_type());
      if (column.logical_type() != nullptr && !column.logical_type()->is_none())
        type += " " + column.logical_type()->ToString();
      if (column.max_repetition_level() > 0) type = "a list of " + type;
      refuse(what, "a text", one_line(type));
    }
    text_level_ = column.max_definition_level();
  }

  // Row groups, with everything that is used of the footer held against the file's size.
  void find_groups() {
    const parquet::FileMetaData& footer = *reader_->metadata();
    const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path_));
    int64_t rows = 0;
    for (int i = 0; i < footer.num_row_groups(); ++i) {
      const std::string what = "footer, row group " + std::to_string(i);
      const auto group = footer.RowGroup(i);
      const auto chunk = group->ColumnChunk(column_);
      if (!chunk->file_path().empty()) refuse(what, "data in this file", chunk->file_path());
      int64_t begin = chunk->data_page_offset();
      if (chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0)
        begin = std::min(begin, chunk->dictionary_page_offset());
      const int64_t bytes = chunk->total_compressed_size();
      if (begin < kMagicBytes || bytes < 0 || begin >= file_bytes ||
          bytes > file_bytes - kMagicBytes - begin) {
        refuse(what, "data within the file's " + std::to_string(file_bytes) + " bytes",
               std::to_string(bytes) + " bytes at " + std::to_string(begin));
      }
      if (group->num_rows() < 0 || chunk->num_values() != group->num_rows()) {
        refuse(what, std::to_string(group->num_rows()) + " values of the column",
               std::to_string(chunk->num_values()));
      }
      groups_.push_back({rows, group->num_rows(), begin, bytes});
      rows += group->num_rows();
    }
    if (rows != footer.num_rows())
      refuse("footer", std::to_string(footer.num_rows()) + " rows in all", std::to_string(rows));
  }

  void read(std::vector<std::optional<std::string_view>>& rows) {
    int64_t num_values = 0;
    int64_t levels = 0;
    if (values_->HasNext()) {
      levels = values_->ReadBatch(kRowsAtOnce, levels_.data(), nullptr, texts_.data(), &num_values);
    }
    rows_read_ += levels;
    size_t value = 0;
    for (int64_t i = 0; i < levels; ++i) {
      if (text_level_ > 0 && levels_[static_cast<size_t>(i)] < text_level_) {
        rows.emplace_back(std::nullopt);
        continue;
      }
      if (value == static_cast<size_t>(num_values)) refuse(group_name(), "a text a row", "fewer");
      const parquet::ByteArray& text = texts_[value++];
      rows.emplace_back(std::string_view(reinterpret_cast<const char*>(text.ptr), text.len));
    }
  }

  const std::string path_;
  const std::string column_name_;
  std::unique_ptr<parquet::ParquetFileReader> reader_;
  int column_ = -1;
  int16_t text_level_ = 0;  // definition level of a row that is not null
  std::vector<RowGroup> groups_;
  int64_t selected_ = 0;
  int64_t rows_read_ = 0;  // of the selected group
  std::shared_ptr<parquet::RowGroupReader> group_reader_;
  std::shared_ptr<parquet::ByteArrayReader> values_;
  std::vector<int16_t> levels_ = std::vector<int16_t>(kRowsAtOnce);
  std::vector<parquet::ByteArray> texts_ = std::vector<parquet::ByteArray>(kRowsAtOnce);
};

}  // namespace

}  // namespace deltatrain::formats

// The module's one door; the caller owns what it returns.
extern "C" __attribute__((visibility("default"))) deltatrain::formats::TextColumn*
deltatrain_open_parquet_text(const std::filesystem::path& path, const std::string& column) {
  return std::make_unique<deltatrain::formats::ParquetText>(path, column).release();
}
