// FlatBuffers, as far as the metadata of Arrow files needs them: reading with every offset checked
// against the buffer before it is followed, and a builder.
//
// A table's fields are numbered as its schema lists them. Numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltatrain::formats {

class FlatTable;

// A vector in a buffer: `size` elements from `position` on.
struct FlatVector {
  int64_t position = 0;
  int64_t size = 0;
};

class FlatBuffer {
 public:
  // `name` begins the messages of FormatErrors.
  FlatBuffer(std::span<const std::byte> bytes, std::string name)
      : bytes_(bytes), name_(std::move(name)) {}

  FlatTable root() const;

  template <class T>
  T load(int64_t position) const {
    check(position, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + position, sizeof(T));
    return value;
  }

  // The position that the u32 offset at `position` points to.
  int64_t follow(int64_t position) const { return position + load<uint32_t>(position); }
  FlatVector vector_at(int64_t position, int64_t element_bytes) const;
  std::string_view string_at(int64_t position) const;
  FlatTable table_in(const FlatVector& offsets, int64_t index) const;

  void check(int64_t position, int64_t bytes) const;
  [[noreturn]] void fail(const std::string& got) const;

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

class FlatTable {
 public:
  FlatTable(const FlatBuffer& buffer, int64_t position);

  bool has(int field) const { return position_of(field) != 0; }

  template <class T>
  T number(int field, T absent) const {
    const int64_t position = position_of(field);
    return position == 0 ? absent : buffer_->load<T>(position);
  }
  FlatTable table(int field) const;                           // must be there
  std::string_view string(int field) const;                   // "" when absent
  FlatVector vector(int field, int64_t element_bytes) const;  // empty when absent

 private:
  int64_t position_of(int field) const;  // 0: absent

  const FlatBuffer* buffer_;
  int64_t position_;
  int64_t fields_;  // position of the vtable
  int64_t num_fields_;
};

// Builds a buffer from its end to its start. Offsets that it returns count from the end.
class FlatBuilder {
 public:
  using Offset = uint32_t;

  Offset string(std::string_view text);
  Offset offsets(const std::vector<Offset>& elements);
  Offset structs(const void* data, size_t element_bytes, size_t count);  // 8-byte aligned

  // Fields between start and finish, in any order; those left out take their defaults.
  void start_table();
  template <class T>
  void number(int field, T value) {
    prepare(sizeof(T), sizeof(T));
    push(&value, sizeof(T));
    fields_.push_back({field, size()});
  }
  void offset(int field, Offset target);
  Offset finish_table();

  // The whole buffer, a multiple of 8 bytes long. Ends the builder.
  std::string finish(Offset root);

 private:
  struct Field {
    int index;
    uint32_t offset;
  };

  uint32_t size() const { return static_cast<uint32_t>(reversed_.size()); }
  void push(const void* data, size_t bytes);
  void prepare(size_t alignment, size_t bytes_to_come);
  void push_offset(Offset target);

  std::vector<char> reversed_;  // the buffer's bytes from the last to the first
  std::vector<Field> fields_;
  uint32_t table_end_ = 0;
};

}  // namespace deltatrain::formats
