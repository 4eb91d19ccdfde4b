#include <cstring>

#include "base/check.h"
#include "formats/pickle.h"

namespace deltatrain::formats {

namespace {

void put(std::string& out, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
}

}  // namespace

PickleWriter::PickleWriter() { out_ = "\x80\x02"; }

void PickleWriter::none() { opcode('N'); }

void PickleWriter::boolean(bool value) { opcode(value ? '\x88' : '\x89'); }

void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value < 256) {
    opcode('K');
    put(out_, static_cast<uint64_t>(value), 1);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    opcode('J');
    put(out_, static_cast<uint64_t>(value), 4);
  } else {
    opcode('\x8a');
    put(out_, 8, 1);
    put(out_, static_cast<uint64_t>(value), 8);
  }
}

void PickleWriter::number(double value) {
  opcode('G');
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i));
}

void PickleWriter::text(std::string_view value) {
  opcode('X');
  put(out_, value.size(), 4);
  out_ += value;
}

void PickleWriter::bytes(std::string_view value) {
  std::string utf8;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xc0U | (byte >> 6));
      utf8 += static_cast<char>(0x80U | (byte & 0x3fU));
    }
  }
  global("_codecs", "encode");
  begin_tuple();
  text(utf8);
  text("latin1");
  end_tuple();
  call();
}

void PickleWriter::numpy_u32(std::span<const uint32_t> values) {
  // An empty array, then its state: version, shape, dtype, order in memory, bytes.
  global("numpy.core.multiarray", "_reconstruct");
  begin_tuple();
  global("numpy", "ndarray");
  begin_tuple();
  integer(0);
  end_tuple();
  bytes("b");
  end_tuple();
  call();
  begin_tuple();
  integer(1);
  begin_tuple();
  integer(static_cast<int64_t>(values.size()));
  end_tuple();
  global("numpy", "dtype");
  begin_tuple();
  text("u4");
  boolean(false);
  boolean(true);
  end_tuple();
  call();
  begin_tuple();
  integer(3);
  text("<");
  none();
  none();
  none();
  integer(-1);
  integer(-1);
  integer(0);
  end_tuple();
  opcode('b');
  boolean(false);
  std::string raw;
  for (const uint32_t value : values) put(raw, value, 4);
  bytes(raw);
  end_tuple();
  opcode('b');
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  DELTATRAIN_CHECK(is_allowed_global(module, name), std::string(module) + "." + std::string(name));
  opcode('c');
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

void PickleWriter::begin_dict() { out_ += "}("; }

void PickleWriter::begin_ordered_dict() {
  global("collections", "OrderedDict");
  out_ += ")R(";
}

void PickleWriter::end_dict() { opcode('u'); }

void PickleWriter::begin_list() { out_ += "]("; }

void PickleWriter::end_list() { opcode('e'); }

void PickleWriter::begin_tuple() { opcode('('); }

void PickleWriter::end_tuple() { opcode('t'); }

void PickleWriter::call() { opcode('R'); }

void PickleWriter::persistent() { opcode('Q'); }

void PickleWriter::begin_namespace() {
  global("argparse", "Namespace");
  out_ += ")\x81";
  begin_dict();
}

void PickleWriter::end_namespace() {
  end_dict();
  opcode('b');
}

void PickleWriter::tensor(std::string_view storage_class, std::string_view key, int64_t count,
                          std::span<const int64_t> shape) {
  global("torch._utils", "_rebuild_tensor_v2");
  begin_tuple();
  begin_tuple();
  text("storage");
  global("torch", storage_class);
  text(key);
  text("cpu");
  integer(count);
  end_tuple();
  persistent();
  integer(0);  // offset
  begin_tuple();
  for (const int64_t size : shape) integer(size);
  end_tuple();
  begin_tuple();
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    int64_t stride = 1;
    for (size_t inner = axis + 1; inner < shape.size(); ++inner) stride *= shape[inner];
    integer(stride);
  }
  end_tuple();
  boolean(false);
  global("collections", "OrderedDict");
  out_ += ")R";
  end_tuple();
  call();
}

std::string PickleWriter::finish() {
  opcode('.');
  return std::move(out_);
}

}  // namespace deltatrain::formats
