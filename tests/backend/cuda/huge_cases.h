// Tensors in device memory that are too large for a reference: results are compared with those of a part alone.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/device_random.h"
#include "backend/registry.h"
#include "base/check.h"
#include "model/training_step.h"  // to_host
#include "verify/op_cases.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

class HugeCases {
 public:
  explicit HugeCases(backend::Backend& backend, DType dtype = DType::kBF16, size_t arena_bytes = size_t{64} << 20)
      : backend_(backend), arena_(backend.device().memory(), arena_bytes), context_(backend.context(arena_, dtype)) {}

  Tensor make(DType dtype, const Shape& shape) {
    const auto bytes = static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype));
    buffers_.emplace_back(backend_.device().memory(), bytes);
    return buffers_.back().tensor(dtype, shape);
  }

  Tensor random(const Shape& shape) {
    const Tensor tensor = make(context_.activation_dtype, shape);
    fill_normal(context_, tensor, 1, ++seed_);
    return tensor;
  }

  Tensor copy(const Tensor& from) {
    const Tensor to = make(from.dtype(), from.shape());
    backend_.device().copy_on_device(to.raw(), from.raw(), static_cast<size_t>(from.num_bytes()));
    return to;
  }

  // One result: the same bytes, of finite numbers that are not all zero.
  void expect_same(const std::string& op, const std::string& name, const std::string& what, const Tensor& got,
                   const Tensor& alone) {
    const auto bytes = static_cast<size_t>(got.num_bytes());
    std::vector<unsigned char> a(bytes);
    std::vector<unsigned char> b(bytes);
    backend_.device().copy_to_host(a.data(), got.raw(), bytes);
    backend_.device().copy_to_host(b.data(), alone.raw(), bytes);
    verify::OpCaseResult result;
    result.op = op;
    result.case_name = name;
    result.tensor = what;
    if (a != b) {
      const auto size = static_cast<size_t>(dtype_bytes(got.dtype()));
      int64_t others = 0;
      double largest = 0;
      for (size_t i = 0; i < bytes; i += size) {
        if (std::equal(&a[i], &a[i] + size, &b[i])) continue;
        const double got_here = number(&a[i], got.dtype());
        const double expected_here = number(&b[i], got.dtype());
        const double difference = std::abs(got_here - expected_here);
        if (others++ > 0 && !(difference > largest)) continue;  // NaN: only where it is the first
        largest = difference;
        result.worst_index = static_cast<int64_t>(i / size);
        result.got = got_here;
        result.expected = expected_here;
      }
      result.note = std::to_string(others) + " elements differ from those of the same rows alone";
    } else if (!are_numbers(a, got.dtype())) {
      result.note = "equal, but not of finite numbers, or all zero";
    } else {
      result.passed = true;
    }
    result.error = result.passed ? 0 : 1;
    results.push_back(result);
  }

  // One result: relative to the second tensor, within the bound of such a quantity.
  void expect_close(const std::string& op, const std::string& name, const std::string& what, const Tensor& got,
                    const Tensor& alone, verify::Quantity quantity) {
    const std::vector<double> a = to_host(context_, got);
    const std::vector<double> b = to_host(context_, alone);
    double difference_sq = 0;
    double size_sq = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference_sq += (a[i] - b[i]) * (a[i] - b[i]);
      size_sq += b[i] * b[i];
    }
    verify::OpCaseResult result;
    result.op = op;
    result.case_name = name;
    result.tensor = what;
    result.bound = verify::tolerance(context_.activation_dtype, quantity);
    result.error = std::sqrt(difference_sq / size_sq);
    result.passed = size_sq > 0 && result.error <= result.bound;  // not so where one is NaN
    results.push_back(result);
  }

  void clear(const Tensor& tensor) {
    backend_.device().fill_zero(tensor.raw(), static_cast<size_t>(tensor.num_bytes()));
  }

  void end_case() {
    backend_.device().synchronize();
    buffers_.clear();
  }

  const Context& context() const { return context_; }
  std::vector<verify::OpCaseResult> results;

 private:
  // An f32, or a bf16, which is the upper half of one.
  static double number(const unsigned char* bytes, DType dtype) {
    std::array<unsigned char, 4> whole = {};
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    DELTATRAIN_CHECK(size <= whole.size(), "f32 or bf16");
    std::copy(bytes, bytes + size, whole.end() - size);
    return std::bit_cast<float>(whole);
  }

  // f32 and bf16: their exponents are the upper bits of the last two bytes.
  static bool are_numbers(const std::vector<unsigned char>& bytes, DType dtype) {
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    bool any = false;
    for (size_t i = size; i <= bytes.size(); i += size) {
      const int top = bytes[i - 1] << 8 | bytes[i - 2];
      if ((top & 0x7f80) == 0x7f80) return false;
      any = any || top != 0;
    }
    return any;
  }

  backend::Backend& backend_;
  Arena arena_;
  Context context_;
  std::vector<Buffer> buffers_;
  uint64_t seed_ = 100;
};

}  // namespace deltatrain::test
