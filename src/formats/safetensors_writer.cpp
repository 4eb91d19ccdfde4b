#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "formats/safetensors.h"

namespace deltatrain::formats {

namespace {

// The reference writer's order of dtypes: descending, so that every tensor is aligned to its
// elements.
int dtype_rank(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 0;
    case DType::kF64:
      return 1;
    case DType::kF32:
      return 2;
    case DType::kI32:
      return 3;
    case DType::kBF16:
      return 4;
    case DType::kF16:
      return 5;
    case DType::kU16:
      return 6;
    case DType::kU8:
      return 7;
  }
  return 8;
}

// A JSON string literal. Bytes of 0x80 and up are passed on: names are UTF-8.
std::string json_string(std::string_view text) {
  static const char* const kDigits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20) {
      result += "\\u00";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15U];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::vector<TensorSpec> in_file_order(std::vector<TensorSpec> specs) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const int rank_a = dtype_rank(a.dtype);
    const int rank_b = dtype_rank(b.dtype);
    return rank_a != rank_b ? rank_a < rank_b : a.name < b.name;
  });
  return specs;
}

std::string make_header(const std::vector<TensorSpec>& specs, const Metadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += json_string(key) + ":" + json_string(value);
    }
    json += '}';
  }
  int64_t position = 0;
  for (const TensorSpec& spec : specs) {
    if (json.size() > 1) json += ',';
    json += json_string(spec.name) + ":{\"dtype\":\"";
    json += safetensors_dtype_name(spec.dtype);
    json += "\",\"shape\":[";
    for (int axis = 0; axis < spec.shape.rank(); ++axis) {
      if (axis > 0) json += ',';
      json += std::to_string(spec.shape[axis]);
    }
    json += "],\"data_offsets\":[" + std::to_string(position) + ",";
    position += spec.num_bytes();
    json += std::to_string(position) + "]}";
  }
  json += '}';
  json.append(static_cast<size_t>(round_up(static_cast<int64_t>(json.size()), 8)) - json.size(),
              ' ');
  return json;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> specs,
                                     const Metadata& metadata)
    : path_(std::move(path)), specs_(in_file_order(std::move(specs))), file_(path_) {
  const std::string json = make_header(specs_, metadata);
  for (size_t i = 0; i < 8; ++i) header_bytes_ += static_cast<char>(json.size() >> (8 * i));
  header_bytes_ += json;
  file_.write(header_bytes_);
  int64_t position = file_.position();
  for (const TensorSpec& spec : specs_) {
    if (!slots_.emplace(spec.name, Slot{position, spec.num_bytes(), 0}).second) {
      throw FormatError(error_text(path_.string(), spec.name, "one tensor of this name", "two"));
    }
    position += spec.num_bytes();
  }
  file_bytes_ = position;
}

void SafetensorsWriter::write(const std::string& name, int64_t offset, const void* data,
                              int64_t bytes) {
  const auto it = slots_.find(name);
  DELTATRAIN_CHECK(it != slots_.end(), name);
  Slot& slot = it->second;
  DELTATRAIN_CHECK(offset >= 0 && bytes >= 0 && bytes <= slot.bytes && offset <= slot.bytes - bytes,
                   name + ": bytes " + std::to_string(offset) + " + " + std::to_string(bytes) +
                       " of " + std::to_string(slot.bytes));
  file_.write_at(slot.begin + offset, data, static_cast<size_t>(bytes));
  slot.written += bytes;
}

void SafetensorsWriter::write(const std::string& name, const Tensor& tensor) {
  const auto it = std::find_if(specs_.begin(), specs_.end(),
                               [&name](const TensorSpec& spec) { return spec.name == name; });
  DELTATRAIN_CHECK(it != specs_.end(), name);
  DELTATRAIN_CHECK(
      tensor.is_contiguous() && tensor.dtype() == it->dtype && tensor.shape() == it->shape,
      name + ": " + describe(tensor));
  write(name, 0, tensor.raw(), tensor.num_bytes());
}

void SafetensorsWriter::commit() {
  for (const auto& [name, slot] : slots_) {
    DELTATRAIN_CHECK(slot.written == slot.bytes, path_.string() + ": " + name + ": " +
                                                     std::to_string(slot.written) + " of " +
                                                     std::to_string(slot.bytes) + " bytes written");
  }
  file_.commit();
}

}  // namespace deltatrain::formats
