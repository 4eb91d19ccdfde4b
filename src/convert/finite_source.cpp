#include "convert/finite_source.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "formats/element_cast.h"

namespace deltatrain::convert {

namespace {

// An exponent of ones is infinity or NaN.
template <class Bits>
bool all_finite(const void* values, int64_t count, Bits exponent) {
  const auto* bytes = static_cast<const std::byte*>(values);
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}

bool all_finite(DType dtype, const void* values, int64_t count) {
  switch (dtype) {
    case DType::kF64:
      return all_finite<uint64_t>(values, count, 0x7ff0000000000000);
    case DType::kF32:
      return all_finite<uint32_t>(values, count, 0x7f800000);
    case DType::kBF16:
      return all_finite<uint16_t>(values, count, 0x7f80);
    case DType::kF16:
      return all_finite<uint16_t>(values, count, 0x7c00);
    default:
      return true;  // whole numbers
  }
}

}  // namespace

FiniteSource::FiniteSource(const WeightSource& source,
                           const std::vector<formats::TensorSpec>& targets)
    : source_(source) {
  for (const formats::TensorSpec& spec : source.tensors())
    dtypes_[spec.name] = {spec.dtype, spec.dtype};
  for (const formats::TensorSpec& target : targets) dtypes_.at(target.name).target = target.dtype;
}

void FiniteSource::read(const std::string& name, int64_t begin, int64_t count, void* out) const {
  source_.read(name, begin, count, out);
  check(name, dtypes_.at(name).stored, begin, count, out);
}

void FiniteSource::read_state(StatePart part, const std::string& name, int64_t begin, int64_t count,
                              float* out) const {
  source_.read_state(part, name, begin, count, out);
  if (part == StatePart::kMaster) check(name, DType::kF32, begin, count, out);
}

void FiniteSource::check(const std::string& name, DType stored, int64_t begin, int64_t count,
                         const void* values) const {
  const DType target = dtypes_.at(name).target;
  std::vector<std::byte> cast;
  if (stored != target) {
    cast.resize(static_cast<size_t>(count * dtype_bytes(target)));
    formats::cast_elements(stored, values, target, cast.data(), count);
    values = cast.data();
  }
  if (all_finite(target, values, count)) return;
  int64_t at = 0;
  while (all_finite(target, static_cast<const std::byte*>(values) + at * dtype_bytes(target), 1))
    ++at;
  throw CheckFailedError(
      error_text(source_.folder().string(), name,
                 fmt::format("numbers that are finite in {}", dtype_name(target)),
                 fmt::format("NaN or infinity at element {}; nothing was written", begin + at)));
}

}  // namespace deltatrain::convert
