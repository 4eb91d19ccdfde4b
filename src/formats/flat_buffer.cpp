#include "formats/flat_buffer.h"

#include <algorithm>

#include "base/error.h"

namespace deltatrain::formats {

void FlatBuffer::fail(const std::string& got) const {
  throw FormatError(error_text(name_, "", "Arrow metadata", got));
}

void FlatBuffer::check(int64_t position, int64_t bytes) const {
  const auto size = static_cast<int64_t>(bytes_.size());
  if (position < 0 || bytes < 0 || position > size || bytes > size - position) {
    fail("an offset to byte " + std::to_string(position) + " of " + std::to_string(size));
  }
}

FlatTable FlatBuffer::root() const { return {*this, follow(0)}; }

FlatVector FlatBuffer::vector_at(int64_t position, int64_t element_bytes) const {
  const FlatVector vector{position + 4, load<uint32_t>(position)};
  check(vector.position, vector.size * element_bytes);
  return vector;
}

std::string_view FlatBuffer::string_at(int64_t position) const {
  const FlatVector characters = vector_at(position, 1);
  return {reinterpret_cast<const char*>(bytes_.data()) + characters.position,
          static_cast<size_t>(characters.size)};
}

FlatTable FlatBuffer::table_in(const FlatVector& offsets, int64_t index) const {
  return {*this, follow(offsets.position + 4 * index)};
}

FlatTable::FlatTable(const FlatBuffer& buffer, int64_t position)
    : buffer_(&buffer), position_(position), fields_(position - buffer.load<int32_t>(position)) {
  num_fields_ = (static_cast<int64_t>(buffer.load<uint16_t>(fields_)) - 4) / 2;
}

int64_t FlatTable::position_of(int field) const {
  if (field >= num_fields_) return 0;
  const auto offset = buffer_->load<uint16_t>(fields_ + 4 + 2 * int64_t{field});
  return offset == 0 ? 0 : position_ + offset;
}

FlatTable FlatTable::table(int field) const {
  const int64_t position = position_of(field);
  if (position == 0) buffer_->fail("a table without field " + std::to_string(field));
  return {*buffer_, buffer_->follow(position)};
}

std::string_view FlatTable::string(int field) const {
  const int64_t position = position_of(field);
  return position == 0 ? std::string_view() : buffer_->string_at(buffer_->follow(position));
}

FlatVector FlatTable::vector(int field, int64_t element_bytes) const {
  const int64_t position = position_of(field);
  return position == 0 ? FlatVector{}
                       : buffer_->vector_at(buffer_->follow(position), element_bytes);
}

void FlatBuilder::push(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  for (size_t i = bytes; i > 0; --i) reversed_.push_back(from[i - 1]);
}

// Pads so that after `bytes_to_come` more bytes the position is aligned, counted from the buffer's
// end.
void FlatBuilder::prepare(size_t alignment, size_t bytes_to_come) {
  while ((reversed_.size() + bytes_to_come) % alignment != 0) reversed_.push_back(0);
}

void FlatBuilder::push_offset(Offset target) {
  prepare(4, 4);
  const uint32_t distance = size() + 4 - target;
  push(&distance, 4);
}

FlatBuilder::Offset FlatBuilder::string(std::string_view text) {
  prepare(4, text.size() + 1);
  reversed_.push_back(0);
  push(text.data(), text.size());
  const auto length = static_cast<uint32_t>(text.size());
  push(&length, 4);
  return size();
}

FlatBuilder::Offset FlatBuilder::offsets(const std::vector<Offset>& elements) {
  for (size_t i = elements.size(); i > 0; --i) push_offset(elements[i - 1]);
  prepare(4, 4);
  const auto length = static_cast<uint32_t>(elements.size());
  push(&length, 4);
  return size();
}

FlatBuilder::Offset FlatBuilder::structs(const void* data, size_t element_bytes, size_t count) {
  prepare(8, 0);
  push(data, element_bytes * count);
  const auto length = static_cast<uint32_t>(count);
  push(&length, 4);
  return size();
}

void FlatBuilder::start_table() {
  fields_.clear();
  table_end_ = size();
}

void FlatBuilder::offset(int field, Offset target) {
  push_offset(target);
  fields_.push_back({field, size()});
}

FlatBuilder::Offset FlatBuilder::finish_table() {
  // The table starts with the distance to its vtable, which is put right in front of it.
  prepare(4, 4);
  const uint32_t table = size() + 4;
  int last_field = -1;
  for (const Field& field : fields_) last_field = std::max(last_field, field.index);
  std::vector<uint16_t> vtable(2 + static_cast<size_t>(last_field + 1), 0);
  vtable[0] = static_cast<uint16_t>(2 * vtable.size());
  vtable[1] = static_cast<uint16_t>(table - table_end_);
  for (const Field& field : fields_) {
    vtable[2 + static_cast<size_t>(field.index)] = static_cast<uint16_t>(table - field.offset);
  }
  const auto distance = static_cast<int32_t>(2 * vtable.size());
  push(&distance, 4);
  push(vtable.data(), 2 * vtable.size());
  return table;
}

std::string FlatBuilder::finish(Offset root) {
  prepare(8, 4);
  push_offset(root);
  return {reversed_.rbegin(), reversed_.rend()};
}

}  // namespace deltatrain::formats
