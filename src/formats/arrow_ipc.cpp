#include "formats/arrow_ipc.h"

#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "formats/arrow_codes.h"
#include "formats/flat_buffer.h"

namespace deltatrain::formats {

namespace {

// More than any file could hold; sizes computed from such a count fit 64 bits.
constexpr int64_t kMostRows = int64_t{1} << 58;

// By TypeCode.
constexpr const char* kTypeNames[] = {
    "none",         "null",           "int",     "float",       "binary",
    "utf8",         "bool",           "decimal", "date",        "time",
    "timestamp",    "interval",       "list",    "struct",      "union",
    "fixed binary", "fixed list",     "map",     "duration",    "large binary",
    "large utf8",   "large list",     "run-end", "binary view", "utf8 view",
    "list view",    "large list view"};

template <class T>
T load(const std::byte* from, int64_t index = 0) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

bool bit(const std::byte* bits, int64_t i) {
  return (std::to_integer<unsigned>(bits[i / 8]) >> (i % 8) & 1U) != 0;
}

// Buffers of one node of this type in a record batch, without its children's; -1: not understood.
int buffers_of(const ArrowField& field) {
  if (field.dictionary) return 2;  // the indices
  switch (field.type) {
    case kNull:
      return 0;
    case kInt:
    case kFloatingPoint:
    case kBool:
    case kDecimal:
    case kDate:
    case kTime:
    case kTimestamp:
    case kInterval:
    case kDuration:
    case kFixedSizeBinary:
    case kList:
    case kLargeList:
    case kMap:
      return 2;
    case kBinary:
    case kUtf8:
    case kLargeBinary:
    case kLargeUtf8:
      return 3;
    case kStruct:
    case kFixedSizeList:
      return 1;
    default:
      return -1;
  }
}

ArrowField read_field(const FlatTable& table, const FlatBuffer& buffer, int depth) {
  if (depth > 16) buffer.fail("a schema nested more than 16 deep");
  ArrowField field;
  field.name = table.string(0);
  field.type = table.number<uint8_t>(2, 0);
  field.dictionary = table.has(4);
  const bool known = field.type > 0 && field.type < static_cast<int>(std::size(kTypeNames));
  field.type_name = known ? kTypeNames[field.type] : "type " + std::to_string(field.type);
  if (field.type == kInt) {
    const FlatTable type = table.table(3);
    field.bits = type.number<int32_t>(0, 0);
    field.type_name =
        (type.number<uint8_t>(1, 0) != 0 ? "int" : "uint") + std::to_string(field.bits);
  }
  if (field.type == kFixedSizeList) field.list_size = table.table(3).number<int32_t>(0, 0);
  const FlatVector children = table.vector(5, 4);
  for (int64_t i = 0; i < children.size; ++i) {
    field.children.push_back(read_field(buffer.table_in(children, i), buffer, depth + 1));
  }
  if (field.children.size() == 1) field.type_name += "<" + field.children[0].type_name + ">";
  if (field.dictionary) field.type_name += " by dictionary";
  return field;
}

}  // namespace

bool ArrowListColumn::is_null(int64_t row) const {
  return validity_ != nullptr && !bit(validity_, row);
}

int64_t ArrowListColumn::begin(int64_t row) const {
  if (fixed_length_ > 0) return row * fixed_length_;
  return wide_offsets_ ? load<int64_t>(offsets_, row) : load<int32_t>(offsets_, row);
}

void ArrowListColumn::read(int64_t row, int64_t first, std::span<int32_t> out) const {
  if (out.empty()) return;  // there may be no values at all
  const int64_t from = begin(row) + first;
  if (!wide_values_) {
    std::memcpy(out.data(), values_ + 4 * from, out.size_bytes());
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const auto value = load<int64_t>(values_, from + static_cast<int64_t>(i));
    if (!std::in_range<int32_t>(value)) {
      throw FormatError(error_text(*where_,
                                   "row " + std::to_string(row) + ", position " +
                                       std::to_string(first + static_cast<int64_t>(i)),
                                   "an id of 32 bits", std::to_string(value)));
    }
    out[i] = static_cast<int32_t>(value);
  }
}

std::optional<std::string_view> ArrowTextColumn::text(int64_t row) const {
  if (validity_ != nullptr && !bit(validity_, row)) return std::nullopt;
  const auto offset = [&](int64_t i) {
    return wide_offsets_ ? load<int64_t>(offsets_, i) : load<int32_t>(offsets_, i);
  };
  const int64_t begin = offset(row);
  return std::string_view(characters_ + begin, static_cast<size_t>(offset(row + 1) - begin));
}

ArrowFile::ArrowFile(const std::filesystem::path& path) : path_(path.string()), file_(path) {
  const auto bytes = file_.bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  // The file form is a stream between a magic of eight bytes and a footer.
  int64_t position = size >= 8 && std::memcmp(bytes.data(), "ARROW1", 6) == 0 ? 8 : 0;
  const auto refuse = [&](const std::string& expected, const std::string& got) {
    throw FormatError(error_text(path_, "byte " + std::to_string(position), expected, got));
  };
  bool schema_seen = false;
  while (true) {
    if (position + 8 > size) {
      // Without its end marker a stream could have lost any number of rows at a border between messages.
      refuse(schema_seen ? "an Arrow message or the end marker" : "an Arrow message",
             std::to_string(size - position) + " bytes to the end: cut off?");
    }
    // Before version 0.15 messages began with their length.
    const bool marked = load<uint32_t>(bytes.data() + position) == 0xffffffffU;
    const int64_t header_bytes = marked ? 8 : 4;
    const auto metadata_bytes =
        static_cast<int64_t>(load<int32_t>(bytes.data() + position + (marked ? 4 : 0)));
    if (metadata_bytes == 0) break;
    if (metadata_bytes < 8 || metadata_bytes > size - position - header_bytes) {
      refuse("an Arrow message", "one of " + std::to_string(metadata_bytes) + " bytes with " +
                                     std::to_string(size - position) +
                                     " to the end: not Arrow, or cut off");
    }
    const auto metadata = bytes.subspan(static_cast<size_t>(position + header_bytes),
                                        static_cast<size_t>(metadata_bytes));
    const FlatBuffer buffer(metadata, path_ + ": message at byte " + std::to_string(position));
    const FlatTable message = buffer.root();
    const auto kind = message.number<uint8_t>(1, 0);
    const auto body_bytes = message.number<int64_t>(3, 0);
    const int64_t body = position + header_bytes + metadata_bytes;
    if (body_bytes < 0 || body_bytes > size - body) {
      refuse("a message body of " + std::to_string(body_bytes) + " bytes",
             std::to_string(size - body) + " to the end: cut off?");
    }
    if (kind == kSchemaMessage) {
      const FlatTable schema = message.table(2);
      if (schema.number<int16_t>(0, 0) != 0)
        throw UnsupportedError(path_ + ": big-endian Arrow data");
      const FlatVector fields = schema.vector(1, 4);
      for (int64_t i = 0; i < fields.size; ++i) {
        fields_.push_back(read_field(buffer.table_in(fields, i), buffer, 0));
      }
      schema_seen = true;
    } else if (kind == kRecordBatchMessage) {
      if (!schema_seen) refuse("a schema first", "a record batch");
      const FlatTable batch = message.table(2);
      if (batch.has(3)) {
        throw UnsupportedError(path_ + ": compressed Arrow data (" +
                               (batch.table(3).number<int8_t>(0, 0) == 0 ? "lz4" : "zstd") + ")");
      }
      const auto rows = batch.number<int64_t>(0, 0);
      if (rows < 0 || rows > kMostRows - num_rows_)
        buffer.fail("a batch of " + std::to_string(rows) + " rows");
      batches_.push_back({metadata,
                          bytes.subspan(static_cast<size_t>(body), static_cast<size_t>(body_bytes)),
                          rows});
      num_rows_ += rows;
    }
    position = body + body_bytes;
  }
  if (!schema_seen) refuse("a schema", "none");
}

struct ArrowFile::Column {
  const ArrowField* field = nullptr;
  int64_t num_rows = 0;
  std::vector<std::span<const std::byte>> buffers;  // of the field and its descendants, in order
  std::vector<std::pair<int64_t, int64_t>> nodes;   // rows and nulls of the same
  std::string where;

  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const {
    throw FormatError(error_text(where, "", expected, got));
  }
  // Bits of validity of a node; null when nothing is null.
  const std::byte* validity(size_t node, size_t buffer) const {
    if (nodes[node].second == 0 || buffers[buffer].empty()) return nullptr;
    require(buffer, (nodes[node].first + 7) / 8);
    return buffers[buffer].data();
  }
  void require(size_t buffer, int64_t bytes) const {
    const auto size = static_cast<int64_t>(buffers[buffer].size());
    if (size < bytes)
      refuse("a buffer of " + std::to_string(bytes) + " bytes", std::to_string(size));
  }
  // Offsets ascending and within [0, limit].
  template <class T>
  void check_offsets(size_t buffer, int64_t limit) const {
    if (num_rows == 0) return;
    require(buffer, (num_rows + 1) * static_cast<int64_t>(sizeof(T)));
    T previous = 0;
    for (int64_t i = 0; i <= num_rows; ++i) {
      const T offset = load<T>(buffers[buffer].data(), i);
      if (offset < previous || offset > limit) {
        refuse("offsets ascending up to " + std::to_string(limit),
               std::to_string(offset) + " after " + std::to_string(previous));
      }
      previous = offset;
    }
  }
};

ArrowFile::Column ArrowFile::find_column(int64_t batch_index, const std::string& name) const {
  const Batch& batch = batches_[static_cast<size_t>(batch_index)];
  Column column;
  column.num_rows = batch.num_rows;
  column.where = path_ + ": batch " + std::to_string(batch_index) + ", column " + name;
  const FlatBuffer buffer(batch.metadata, path_ + ": batch " + std::to_string(batch_index));
  const FlatTable table = buffer.root().table(2);
  const FlatVector nodes = table.vector(1, 16);
  const FlatVector buffers = table.vector(2, 16);
  int64_t node = 0;
  int64_t next_buffer = 0;

  const auto body_size = static_cast<int64_t>(batch.body.size());
  const auto step = [&](const auto& self, const ArrowField& field, bool wanted) -> void {
    const int count = buffers_of(field);
    if (count < 0)
      throw UnsupportedError(path_ + ": column " + field.name + ": type " + field.type_name);
    if (node >= nodes.size || next_buffer + count > buffers.size) {
      buffer.fail("fewer buffers than the schema needs");
    }
    if (wanted) {
      column.nodes.emplace_back(buffer.load<int64_t>(nodes.position + 16 * node),
                                buffer.load<int64_t>(nodes.position + 16 * node + 8));
      // Counts of a damaged file may be anything.
      if (column.nodes.back().first < 0 || column.nodes.back().first > kMostRows) {
        buffer.fail("a count of rows that no file could hold");
      }
      for (int64_t i = next_buffer; i < next_buffer + count; ++i) {
        const auto offset = buffer.load<int64_t>(buffers.position + 16 * i);
        const auto bytes = buffer.load<int64_t>(buffers.position + 16 * i + 8);
        if (offset < 0 || bytes < 0 || offset > body_size || bytes > body_size - offset) {
          column.refuse("buffers within the body of " + std::to_string(body_size) + " bytes",
                        std::to_string(bytes) + " bytes at " + std::to_string(offset));
        }
        column.buffers.push_back(
            batch.body.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes)));
      }
    }
    ++node;
    next_buffer += count;
    if (field.dictionary) return;
    for (const ArrowField& child : field.children) self(self, child, wanted);
  };
  std::string names;
  for (const ArrowField& field : fields_) {
    const bool wanted = field.name == name;
    step(step, field, wanted);
    names += (names.empty() ? "" : ", ") + field.name;
    if (wanted) {
      column.field = &field;
      if (column.nodes[0].first != batch.num_rows) {
        column.refuse(std::to_string(batch.num_rows) + " rows",
                      std::to_string(column.nodes[0].first));
      }
      return column;
    }
  }
  throw FormatError(error_text(path_, "column " + name, "this column", "only " + names));
}

ArrowListColumn ArrowFile::list_column(int64_t batch, const std::string& name) const {
  const Column column = find_column(batch, name);
  const ArrowField& field = *column.field;
  const bool fixed = field.type == kFixedSizeList;
  if ((field.type != kList && field.type != kLargeList && !fixed) || field.children.size() != 1 ||
      field.children[0].type != kInt || field.children[0].dictionary ||
      (field.children[0].bits != 32 && field.children[0].bits != 64)) {
    column.refuse("a list of int32 or int64", field.type_name);
  }
  ArrowListColumn list;
  list.where_ = &path_;
  list.num_rows_ = column.num_rows;
  list.validity_ = column.validity(0, 0);
  const size_t values = fixed ? 2 : 3;  // validity, offsets, then the child's validity and values
  if (column.validity(1, values - 1) != nullptr) column.refuse("token ids", "null");
  list.wide_values_ = field.children[0].bits == 64;
  const int64_t num_values = column.nodes[1].first;
  if (num_values < 0) column.refuse("token ids", std::to_string(num_values));
  column.require(values, num_values * (list.wide_values_ ? 8 : 4));
  list.values_ = column.buffers[values].data();
  if (fixed) {
    list.fixed_length_ = field.list_size;
    if (field.list_size < 1 || column.num_rows > num_values / field.list_size) {
      column.refuse(
          std::to_string(column.num_rows) + " rows of " + std::to_string(field.list_size) + " ids",
          std::to_string(num_values) + " ids");
    }
    return list;
  }
  list.wide_offsets_ = field.type == kLargeList;
  list.offsets_ = column.buffers[1].data();
  list.wide_offsets_ ? column.check_offsets<int64_t>(1, num_values)
                     : column.check_offsets<int32_t>(1, num_values);
  return list;
}

void ArrowFile::check_text_column(const std::string& name) const {
  std::string names;
  for (const ArrowField& field : fields_) {
    if (field.name == name) {
      if ((field.type == kUtf8 || field.type == kLargeUtf8) && !field.dictionary) return;
      throw FormatError(error_text(path_, "column " + name, "a text", field.type_name));
    }
    names += (names.empty() ? "" : ", ") + field.name;
  }
  throw FormatError(error_text(path_, "column " + name, "this column", "only " + names));
}

ArrowTextColumn ArrowFile::text_column(int64_t batch, const std::string& name) const {
  check_text_column(name);
  const Column column = find_column(batch, name);
  const ArrowField& field = *column.field;
  ArrowTextColumn text;
  text.num_rows_ = column.num_rows;
  text.validity_ = column.validity(0, 0);
  text.wide_offsets_ = field.type == kLargeUtf8;
  text.offsets_ = column.buffers[1].data();
  text.characters_ = reinterpret_cast<const char*>(column.buffers[2].data());
  const auto limit = static_cast<int64_t>(column.buffers[2].size());
  text.wide_offsets_ ? column.check_offsets<int64_t>(1, limit)
                     : column.check_offsets<int32_t>(1, limit);
  return text;
}

}  // namespace deltatrain::formats
