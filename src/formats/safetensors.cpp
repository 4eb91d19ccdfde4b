#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "formats/element_cast.h"
#include "formats/safetensors_header.h"

namespace deltatrain::formats {

namespace {

constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

uint64_t read_u64(const std::byte* from) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = (value << 8) | std::to_integer<uint64_t>(from[i]);
  return value;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const std::string where = path.string();
  if (bytes.size() < 8) {
    throw FormatError(error_text(where, "", "a safetensors file of 8 bytes or more",
                                 std::to_string(bytes.size())));
  }
  const uint64_t header_bytes = read_u64(bytes.data());
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    throw FormatError(error_text(where, "header length",
                                 "at most " + std::to_string(kMaxSafetensorsHeader),
                                 std::to_string(header_bytes)));
  }
  if (header_bytes > bytes.size() - 8) {
    throw FormatError(
        error_text(where, "header length",
                   "at most the " + std::to_string(bytes.size() - 8) + " bytes that follow",
                   std::to_string(header_bytes)));
  }
  header_bytes_ = bytes.first(8 + header_bytes);
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);
  internal::Header header = internal::parse_header(json, static_cast<int64_t>(data.size()), where);
  metadata_ = std::move(header.metadata);
  for (internal::HeaderTensor& tensor : header.tensors) {
    const auto part = data.subspan(static_cast<size_t>(tensor.begin),
                                   static_cast<size_t>(tensor.end - tensor.begin));
    tensors_.emplace(std::move(tensor.name), StoredTensor{tensor.dtype, tensor.shape, part});
  }
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr)
    throw FormatError(error_text(path().string(), name, "this tensor", "none"));
  return *tensor;
}

std::string_view safetensors_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kU16:
      return "U16";
    case DType::kU8:
      return "U8";
  }
  return "";
}

void read_tensor(const StoredTensor& stored, const Tensor& out, const std::string& where,
                 const std::string& name) {
  DELTATRAIN_CHECK(out.is_contiguous(), name + ": " + describe(out));
  const bool convertible =
      stored.dtype == out.dtype() || (is_floating(stored.dtype) && is_floating(out.dtype()));
  if (!convertible || stored.shape != out.shape()) {
    throw ShapeError(
        error_text(where, name, describe(out),
                   std::string(dtype_name(stored.dtype)) + " " + to_string(stored.shape)));
  }
  cast_elements(stored.dtype, stored.bytes.data(), out.dtype(), out.raw(), out.num_elements());
}

}  // namespace deltatrain::formats
