// Parquet through Arrow C++: one column of text by its column readers, which hold one page at a time, and whole rows by its
// record batches. A library of its own, which parquet.cpp loads: see there.
#include <arrow/array.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "formats/table_rows.h"
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

// What both readers know of their file.
class ParquetFile {
 protected:
  explicit ParquetFile(std::string path) : path_(std::move(path)) {}

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

  const std::string path_;
};

class ParquetText final : public TextColumn, private ParquetFile {
 public:
  ParquetText(const std::filesystem::path& path, const std::string& column)
      : ParquetFile(path.string()), column_name_(column) {
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

using arrow::Type;

// Deeper lists and structs than people write are left out, as types without a form in JSON are.
constexpr int kMaxDepth = 16;

bool has_json_form(const arrow::DataType& type, int depth = 0) {
  switch (type.id()) {
    case Type::NA:
    case Type::BOOL:
    case Type::INT8:
    case Type::INT16:
    case Type::INT32:
    case Type::INT64:
    case Type::UINT8:
    case Type::UINT16:
    case Type::UINT32:
    case Type::UINT64:
    case Type::FLOAT:
    case Type::DOUBLE:
    case Type::STRING:
    case Type::LARGE_STRING:
      return true;
    case Type::DICTIONARY:
      return has_json_form(*static_cast<const arrow::DictionaryType&>(type).value_type(),
                           depth + 1);
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
    case Type::STRUCT:
      return depth < kMaxDepth && std::ranges::all_of(type.fields(), [&](const auto& field) {
               return has_json_form(*field->type(), depth + 1);
             });
    default:
      return false;
  }
}

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

template <class Array>
const Array& as(const arrow::Array& array) {
  return static_cast<const Array&>(array);
}

void append(const arrow::Array& array, int64_t row, std::string& out);

template <class List>
void append_list(const arrow::Array& array, int64_t row, std::string& out) {
  const auto& list = as<List>(array);
  const int64_t begin = list.value_offset(row);
  const int64_t end = begin + list.value_length(row);
  out += '[';
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) out += ',';
    append(*list.values(), i, out);
  }
  out += ']';
}

// Value `row` of an array whose type has a form in JSON.
void append(const arrow::Array& array, int64_t row, std::string& out) {
  if (array.IsNull(row)) {
    out += "null";
    return;
  }
  switch (array.type_id()) {
    case Type::BOOL:
      out += as<arrow::BooleanArray>(array).Value(row) ? "true" : "false";
      return;
    case Type::INT8:
      out += std::to_string(as<arrow::Int8Array>(array).Value(row));
      return;
    case Type::INT16:
      out += std::to_string(as<arrow::Int16Array>(array).Value(row));
      return;
    case Type::INT32:
      out += std::to_string(as<arrow::Int32Array>(array).Value(row));
      return;
    case Type::INT64:
      out += std::to_string(as<arrow::Int64Array>(array).Value(row));
      return;
    case Type::UINT8:
      out += std::to_string(as<arrow::UInt8Array>(array).Value(row));
      return;
    case Type::UINT16:
      out += std::to_string(as<arrow::UInt16Array>(array).Value(row));
      return;
    case Type::UINT32:
      out += std::to_string(as<arrow::UInt32Array>(array).Value(row));
      return;
    case Type::UINT64:
      out += std::to_string(as<arrow::UInt64Array>(array).Value(row));
      return;
    case Type::FLOAT:
      out += nlohmann::json(static_cast<double>(as<arrow::FloatArray>(array).Value(row))).dump();
      return;
    case Type::DOUBLE:
      out += nlohmann::json(as<arrow::DoubleArray>(array).Value(row)).dump();
      return;
    case Type::STRING:
      out += json_text(as<arrow::StringArray>(array).GetView(row));
      return;
    case Type::LARGE_STRING:
      out += json_text(as<arrow::LargeStringArray>(array).GetView(row));
      return;
    case Type::DICTIONARY: {
      const auto& entries = as<arrow::DictionaryArray>(array);
      append(*entries.dictionary(), entries.GetValueIndex(row), out);
      return;
    }
    case Type::LIST:
      return append_list<arrow::ListArray>(array, row, out);
    case Type::LARGE_LIST:
      return append_list<arrow::LargeListArray>(array, row, out);
    case Type::FIXED_SIZE_LIST:
      return append_list<arrow::FixedSizeListArray>(array, row, out);
    case Type::STRUCT: {
      const auto& group = as<arrow::StructArray>(array);
      out += '{';
      for (int i = 0; i < group.num_fields(); ++i) {
        out += (i > 0 ? "," : "") + json_text(group.struct_type()->field(i)->name()) + ":";
        append(*group.field(i), row, out);
      }
      out += '}';
      return;
    }
    default:
      throw InternalError("parquet: a column of type " + array.type()->ToString());
  }
}

class ParquetRows final : public TableRows, private ParquetFile {
 public:
  explicit ParquetRows(const std::filesystem::path& path) : ParquetFile(path.string()) {
    guarded("footer", [&] {
      parquet::ReaderProperties properties;
      properties.enable_buffered_stream();
      properties.set_buffer_size(kBufferBytes);
      parquet::arrow::FileReaderBuilder builder;
      check(builder.OpenFile(path_, /*memory_map=*/false, properties));
      parquet::ArrowReaderProperties reading;
      reading.set_use_threads(false);
      reading.set_batch_size(kRowsAtOnce);
      builder.properties(reading);
      check(builder.Build(&reader_));
      std::shared_ptr<arrow::Schema> schema;
      check(reader_->GetSchema(&schema));
      std::set<std::string> names;
      for (const auto& field : schema->fields()) {
        if (!names.insert(field->name()).second)
          refuse("column " + field->name(), "every column once", "twice");
        columns_.push_back(
            {field->name(), one_line(field->type()->ToString()), has_json_form(*field->type())});
      }
      // Leaves of the columns that are read: a struct or list has one or more.
      std::vector<int> leaves;
      const parquet::SchemaDescriptor& leaf_schema =
          *reader_->parquet_reader()->metadata()->schema();
      for (int i = 0; i < leaf_schema.num_columns(); ++i) {
        const std::string& root = leaf_schema.GetColumnRoot(i)->name();
        const auto column = std::ranges::find(columns_, root, &Column::name);
        if (column != columns_.end() && column->is_read) leaves.push_back(i);
      }
      std::vector<int> groups;
      for (int i = 0; i < reader_->num_row_groups(); ++i) groups.push_back(i);
      auto batches = reader_->GetRecordBatchReader(groups, leaves);
      check(batches.status());
      batches_ = std::move(*batches);
    });
  }

  const std::vector<Column>& columns() const override { return columns_; }

  bool next(std::string& row) override {
    row.clear();
    guarded("row " + std::to_string(num_rows_), [&] {
      while (batch_ == nullptr || row_ == batch_->num_rows()) {
        check(batches_->ReadNext(&batch_));
        row_ = 0;
        if (batch_ == nullptr) break;
        check(batch_->ValidateFull());  // offsets, indices of dictionaries, UTF-8
      }
      if (batch_ == nullptr) return;
      row += '{';
      for (int i = 0; i < batch_->num_columns(); ++i) {
        row += (i > 0 ? "," : "") + json_text(batch_->column_name(i)) + ":";
        append(*batch_->column(i), row_, row);
      }
      row += '}';
    });
    if (row.empty()) {
      const int64_t want = reader_->parquet_reader()->metadata()->num_rows();
      if (num_rows_ != want)
        refuse("rows", std::to_string(want) + " as the footer says", std::to_string(num_rows_));
      return false;
    }
    ++row_;
    ++num_rows_;
    return true;
  }

 private:
  static void check(const arrow::Status& status) {
    if (!status.ok()) throw parquet::ParquetException(status.ToString());
  }

  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::vector<Column> columns_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;  // as the library hands it out
  int64_t row_ = 0;                            // of the batch
  int64_t num_rows_ = 0;                       // given
};

}  // namespace

}  // namespace deltatrain::formats

// The module's doors; the caller owns what they return.
extern "C" __attribute__((visibility("default"))) deltatrain::formats::TextColumn*
deltatrain_open_parquet_text(const std::filesystem::path& path, const std::string& column) {
  return std::make_unique<deltatrain::formats::ParquetText>(path, column).release();
}

extern "C" __attribute__((visibility("default"))) deltatrain::formats::TableRows*
deltatrain_open_parquet_rows(const std::filesystem::path& path) {
  return std::make_unique<deltatrain::formats::ParquetRows>(path).release();
}
