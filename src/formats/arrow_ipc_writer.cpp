#include <array>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "formats/arrow_codes.h"
#include "formats/arrow_ipc.h"
#include "formats/flat_buffer.h"

namespace deltatrain::formats {

namespace {

constexpr int16_t kVersion5 = 4;

FlatBuilder::Offset int32_type(FlatBuilder& builder) {
  builder.start_table();
  builder.number<int32_t>(0, 32);
  builder.number<uint8_t>(1, 1);
  return builder.finish_table();
}

FlatBuilder::Offset empty_table(FlatBuilder& builder) {
  builder.start_table();
  return builder.finish_table();
}

FlatBuilder::Offset field(FlatBuilder& builder, std::string_view name, uint8_t type,
                          FlatBuilder::Offset type_table,
                          const std::vector<FlatBuilder::Offset>& children) {
  const auto name_offset = builder.string(name);
  const auto children_offset = builder.offsets(children);
  builder.start_table();
  builder.offset(0, name_offset);
  builder.offset(3, type_table);
  builder.offset(5, children_offset);
  builder.number<uint8_t>(1, 1);  // nullable
  builder.number<uint8_t>(2, type);
  return builder.finish_table();
}

std::string message(FlatBuilder& builder, uint8_t kind, FlatBuilder::Offset header,
                    int64_t body_bytes) {
  builder.start_table();
  builder.number<int64_t>(3, body_bytes);
  builder.offset(2, header);
  builder.number<int16_t>(0, kVersion5);
  builder.number<uint8_t>(1, kind);
  return builder.finish(builder.finish_table());
}

std::string schema_message(const std::string& column, const std::string& metadata) {
  FlatBuilder builder;
  const auto item = field(builder, "item", kInt, int32_type(builder), {});
  const auto list = field(builder, column, kList, empty_table(builder), {item});
  const auto fields = builder.offsets({list});
  FlatBuilder::Offset key_values = 0;
  if (!metadata.empty()) {
    const auto value = builder.string(metadata);
    const auto key = builder.string("huggingface");
    builder.start_table();
    builder.offset(0, key);
    builder.offset(1, value);
    key_values = builder.offsets({builder.finish_table()});
  }
  builder.start_table();
  builder.offset(1, fields);
  if (key_values != 0) builder.offset(2, key_values);
  return message(builder, kSchemaMessage, builder.finish_table(), 0);
}

struct FieldNode {
  int64_t length;
  int64_t null_count;
};

struct BufferRange {
  int64_t offset;
  int64_t bytes;
};

}  // namespace

struct ArrowListWriter::State {
  explicit State(const std::filesystem::path& path) : file(path) {}

  void write(const void* data, size_t bytes) {
    digest.update(data, bytes);
    file.write(data, bytes);
  }

  void write_message(const std::string& metadata) {
    const uint32_t marker = 0xffffffffU;
    const auto bytes = static_cast<int32_t>(metadata.size());
    write(&marker, 4);
    write(&bytes, 4);
    write(metadata.data(), metadata.size());
  }

  AtomicFileWriter file;
  Sha256 digest;
  std::vector<int32_t> offsets;
};

ArrowListWriter::ArrowListWriter(const std::filesystem::path& path, const std::string& column,
                                 const std::string& metadata)
    : state_(std::make_unique<State>(path)) {
  state_->write_message(schema_message(column, metadata));
}

ArrowListWriter::~ArrowListWriter() = default;

void ArrowListWriter::write_batch(std::span<const int32_t> tokens, int64_t row_length) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  DELTATRAIN_CHECK(num_tokens <= std::numeric_limits<int32_t>::max(), std::to_string(num_tokens));
  const int64_t rows = divide_exactly(num_tokens, row_length);
  std::vector<int32_t>& offsets = state_->offsets;
  offsets.resize(static_cast<size_t>(rows) + 1);
  for (int64_t row = 0; row <= rows; ++row) {
    offsets[static_cast<size_t>(row)] = static_cast<int32_t>(row * row_length);
  }
  const int64_t offset_bytes = 4 * (rows + 1);
  const int64_t values_at = round_up(offset_bytes, 8);
  const int64_t body_bytes = values_at + round_up(4 * num_tokens, 8);
  // Nothing is null, so the two validity buffers are empty.
  const std::array<FieldNode, 2> nodes{{{rows, 0}, {num_tokens, 0}}};
  const std::array<BufferRange, 4> buffers{
      {{0, 0}, {0, offset_bytes}, {values_at, 0}, {values_at, 4 * num_tokens}}};

  FlatBuilder builder;
  const auto buffers_offset = builder.structs(buffers.data(), sizeof(BufferRange), buffers.size());
  const auto nodes_offset = builder.structs(nodes.data(), sizeof(FieldNode), nodes.size());
  builder.start_table();
  builder.number<int64_t>(0, rows);
  builder.offset(1, nodes_offset);
  builder.offset(2, buffers_offset);
  state_->write_message(message(builder, kRecordBatchMessage, builder.finish_table(), body_bytes));

  constexpr char kZeros[8] = {};
  state_->write(offsets.data(), static_cast<size_t>(offset_bytes));
  state_->write(kZeros, static_cast<size_t>(values_at - offset_bytes));
  state_->write(tokens.data(), tokens.size_bytes());
  state_->write(kZeros, static_cast<size_t>(body_bytes - values_at - 4 * num_tokens));
}

std::pair<std::string, int64_t> ArrowListWriter::commit() {
  const uint32_t end[2] = {0xffffffffU, 0};
  state_->write(end, sizeof end);
  state_->file.commit();
  return {state_->digest.hex(), state_->file.position()};
}

}  // namespace deltatrain::formats
