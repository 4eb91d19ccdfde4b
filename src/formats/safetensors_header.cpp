#include "formats/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/error.h"

namespace deltatrain::formats::internal {

namespace {

std::optional<DType> dtype_from_name(std::string_view name) {
  if (name == "F64") return DType::kF64;
  if (name == "F32") return DType::kF32;
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  if (name == "I64") return DType::kI64;
  if (name == "I32") return DType::kI32;
  if (name == "U16") return DType::kU16;
  if (name == "U8") return DType::kU8;
  return std::nullopt;
}

// Text from a file, made fit for one line of a terminal: long or unprintable names are cut and
// replaced.
std::string printable(std::string_view text) {
  constexpr size_t kMaxLength = 120;
  std::string result;
  for (const char c : text.substr(0, kMaxLength)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  if (text.size() > kMaxLength) result += "...";
  return result;
}

// Receives the header's JSON as events, so that nothing is built for a file that is not what it
// claims: its depth is bounded by the states below.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(Header& header, const std::string& where) : header_(header), where_(where) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(printable(text));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_integer(number_integer_t value) override {
    return unexpected(std::to_string(value));  // negative: others arrive as unsigned
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) {
      return unexpected(std::to_string(value));
    }
    if (value > static_cast<uint64_t>(INT64_MAX))
      fail(field_, "a 63-bit number", std::to_string(value));
    const auto number = static_cast<int64_t>(value);
    if (state_ == State::kShape) {
      if (tensor_.shape.rank() == Shape::kMaxRank) {
        fail("shape", "at most " + std::to_string(Shape::kMaxRank) + " axes", "more");
      }
      tensor_.shape.append(number);
    } else {
      if (num_offsets_ == 2) fail("data_offsets", "two numbers", "more");
      (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = number;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      if (!header_.metadata.emplace(field_, value).second) {
        fail("__metadata__." + printable(field_), "one entry of this name", "two");
      }
      return true;
    }
    if (state_ != State::kTensor || field_ != "dtype") {
      return unexpected("\"" + printable(value) + "\"");
    }
    const auto dtype = dtype_from_name(value);
    if (!dtype) {
      fail("dtype", "one of F64, F32, BF16, F16, I64, I32, U16, U8",
           "\"" + printable(value) + "\"");
    }
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        state_ = field_ == "__metadata__" ? State::kMetadata : State::kTensor;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(string_t& value) override {
    if (state_ == State::kTop) {
      tensor_ = HeaderTensor{};
      tensor_.name = value;
      seen_fields_.clear();
      num_offsets_ = 0;
      if (!names_.insert(value).second) fail("", "one entry of this name", "two");
    } else if (state_ == State::kTensor) {
      if (value != "dtype" && value != "shape" && value != "data_offsets") {
        fail(printable(value), "only dtype, shape and data_offsets", "");
      }
      if (std::find(seen_fields_.begin(), seen_fields_.end(), value) != seen_fields_.end()) {
        fail(value, "one such key", "two");
      }
      seen_fields_.push_back(value);
    }
    field_ = value;
    return true;
  }

  bool end_object() override {
    switch (state_) {
      case State::kTensor:
        for (const char* field : {"dtype", "shape", "data_offsets"}) {
          if (std::find(seen_fields_.begin(), seen_fields_.end(), field) == seen_fields_.end()) {
            fail(field, "this key", "none");
          }
        }
        header_.tensors.push_back(tensor_);
        state_ = State::kTop;
        return true;
      case State::kMetadata:
        state_ = State::kTop;
        return true;
      default:
        state_ = State::kEnd;
        return true;
    }
  }

  bool start_array(size_t) override {
    if (state_ != State::kTensor || field_ == "dtype") return unexpected("an array");
    state_ = field_ == "shape" ? State::kShape : State::kOffsets;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && num_offsets_ != 2) {
      fail("data_offsets", "two numbers", std::to_string(num_offsets_));
    }
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw FormatError(
        error_text(where_, "header byte " + std::to_string(position), "JSON", "something else"));
  }

 private:
  enum class State : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool unexpected(const std::string& got) {
    switch (state_) {
      case State::kStart:
        throw FormatError(error_text(where_, "header", "a JSON object", got));
      case State::kTop:
        fail("", "an object", got);
      case State::kMetadata:
        fail(printable(field_), "text", got);
      case State::kTensor:
        fail(field_, field_ == "dtype" ? "text" : "an array of numbers", got);
      default:
        fail(field_, "a whole number of 0 or more", got);
    }
  }

  [[noreturn]] void fail(const std::string& field, const std::string& expected,
                         const std::string& got) {
    throw FormatError(error_text(
        where_, printable(tensor_.name) + (field.empty() ? "" : ": " + field), expected, got));
  }

  Header& header_;
  const std::string& where_;
  State state_ = State::kStart;
  std::string field_;
  HeaderTensor tensor_;
  std::vector<std::string> seen_fields_;
  int num_offsets_ = 0;
  std::unordered_set<std::string> names_;
};

// Bytes of a tensor, or absent when they do not fit 63 bits.
std::optional<int64_t> checked_bytes(DType dtype, const Shape& shape) {
  int64_t bytes = dtype_bytes(dtype);
  bool empty = false;
  for (int axis = 0; axis < shape.rank(); ++axis) empty = empty || shape[axis] == 0;
  if (empty) return 0;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (__builtin_mul_overflow(bytes, shape[axis], &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

Header parse_header(std::string_view json, int64_t data_bytes, const std::string& where) {
  Header header;
  HeaderHandler handler(header, where);
  if (json.empty() || json.front() != '{') {
    throw FormatError(error_text(where, "header", "JSON that starts with {", "something else"));
  }
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);

  for (const HeaderTensor& tensor : header.tensors) {
    const std::string what = printable(tensor.name);
    const std::string range =
        "[" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + ")";
    if (tensor.begin > tensor.end || tensor.end > data_bytes) {
      throw FormatError(
          error_text(where, what + ": data_offsets",
                     "a range within " + std::to_string(data_bytes) + " bytes of data", range));
    }
    const auto bytes = checked_bytes(tensor.dtype, tensor.shape);
    if (!bytes) {
      throw FormatError(
          error_text(where, what + ": shape", "less than 2^63 bytes", to_string(tensor.shape)));
    }
    if (*bytes != tensor.end - tensor.begin) {
      throw FormatError(error_text(where, what + ": data_offsets",
                                   std::to_string(*bytes) + " bytes for " +
                                       std::string(dtype_name(tensor.dtype)) + " " +
                                       to_string(tensor.shape),
                                   std::to_string(tensor.end - tensor.begin)));
    }
  }

  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const HeaderTensor& a, const HeaderTensor& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  int64_t position = 0;
  for (const HeaderTensor& tensor : header.tensors) {
    if (tensor.begin != position) {
      throw FormatError(error_text(
          where, printable(tensor.name) + ": data_offsets",
          "to begin at " + std::to_string(position) + ", where the tensor before it ends",
          std::to_string(tensor.begin) +
              (tensor.begin > position ? " (a hole)" : " (an overlap)")));
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    throw FormatError(error_text(where, "data",
                                 std::to_string(position) + " bytes as the header says",
                                 std::to_string(data_bytes)));
  }
  return header;
}

}  // namespace deltatrain::formats::internal
