#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"

namespace deltatrain::backend::cpu {

void add_partial_sums(const float* partials, int64_t num_blocks, int64_t width, float* out) {
  constexpr int64_t kColumns = 64;
  const auto columns = [&](int64_t chunk) {
    const int64_t begin = chunk * kColumns;
    const int64_t count = std::min(kColumns, width - begin);
    double sums[kColumns] = {};
    for (int64_t b = 0; b < num_blocks; ++b) {
      const float* row = partials + b * width + begin;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(row[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[begin + i] += static_cast<float>(sums[i]);
  };
  parallel_for(divide_up(width, kColumns), columns, num_blocks * width > kSerialElements);
}

void add(const Context&, const ops::Add& args) {
  const int64_t D = args.y_RD.size(1);
  const float* a = args.a_RD.data<float>();
  const float* b = args.b_RD.data<float>();
  float* y = args.y_RD.data<float>();
  const int64_t a_stride = args.a_RD.stride(0);
  const int64_t b_stride = args.b_RD.stride(0);
  const int64_t y_stride = args.y_RD.stride(0);
  parallel_rows(args.y_RD.size(0), D, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* a_row = a + r * a_stride;
      const float* b_row = b + r * b_stride;
      float* y_row = y + r * y_stride;
#pragma omp simd
      for (int64_t d = 0; d < D; ++d) y_row[d] = a_row[d] + b_row[d];
    }
  });
}

namespace {

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return static_cast<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class To, class From>
void convert_elements(const Tensor& x_tensor, const Tensor& y_tensor) {
  const From* x = x_tensor.data<From>();
  To* y = y_tensor.data<To>();
  parallel_elements(x_tensor.num_elements(), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = converted<To>(x[i]);
  });
}

template <class From>
void convert_from(const ops::Convert& args) {
  switch (args.y.dtype()) {
    case DType::kF64:
      return convert_elements<double, From>(args.x, args.y);
    case DType::kF32:
      return convert_elements<float, From>(args.x, args.y);
    case DType::kBF16:
      return convert_elements<BFloat16, From>(args.x, args.y);
    default:
      throw UnsupportedError(
          error_text("convert", "y", "f64, f32 or bf16", dtype_name(args.y.dtype())));
  }
}

}  // namespace

void convert(const Context&, const ops::Convert& args) {
  switch (args.x.dtype()) {
    case DType::kF64:
      return convert_from<double>(args);
    case DType::kF32:
      return convert_from<float>(args);
    case DType::kBF16:
      return convert_from<BFloat16>(args);
    default:
      throw UnsupportedError(
          error_text("convert", "x", "f64, f32 or bf16", dtype_name(args.x.dtype())));
  }
}

void sum_to(const Context&, const ops::SumTo& args) {
  const int64_t R = args.x_R.size(0);
  const float* x = args.x_R.data<float>();
  double sum = 0;
  for (int64_t r = 0; r < R; ++r) sum += static_cast<double>(x[r]);
  *args.result += sum;
}

void checksum(const Context&, const ops::Checksum& args) {
  const auto* words = static_cast<const uint32_t*>(args.x_X.raw());
  const int64_t n = args.x_X.num_bytes() / 4;
  constexpr int64_t kBlock = int64_t{1} << 18;
  std::atomic<uint64_t> total = 0;  // of integers: the order of blocks does not matter
  parallel_for(divide_up(n, kBlock), [&](int64_t block) {
    uint64_t sum = 0;
    const int64_t end = std::min(n, (block + 1) * kBlock);
    for (int64_t i = block * kBlock; i < end; ++i)
      sum += ops::checksum_term(static_cast<uint64_t>(i), words[i]);
    total += sum;
  });
  *args.result += total;
}

void row_argmax(const Context&, const ops::RowArgmax& args) {
  const int64_t N = args.x_RN.size(1);
  const float* x = args.x_RN.data<float>();
  const int64_t stride = args.x_RN.stride(0);
  int32_t* index = args.index_R.data<int32_t>();
  parallel_rows(args.x_RN.size(0), N, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = x + r * stride;
      const float* best = std::max_element(row, row + N);
      const bool has_nan = std::any_of(row, row + N, [](float value) { return std::isnan(value); });
      index[r] = has_nan || std::isinf(*best) ? -1 : static_cast<int32_t>(best - row);
    }
  });
}

void copy_rows(const Context&, const ops::CopyRows& args) {
  const int64_t row_bytes = args.x_X.rows(0, 1).num_bytes();
  const int64_t item_bytes = args.counts_R.defined() ? row_bytes / args.x_X.size(1) : 0;
  const char* x = static_cast<const char*>(args.x_X.raw());
  char* y = static_cast<char*>(args.y_X.raw());
  const int32_t* from = args.from_R.data<int32_t>();
  const int32_t* to = args.to_R.data<int32_t>();
  const int32_t* counts = args.counts_R.data<int32_t>();
  parallel_rows(args.from_R.size(0), row_bytes, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto bytes =
          static_cast<size_t>(counts == nullptr ? row_bytes : counts[r] * item_bytes);
      if (from[r] < 0) {
        std::memset(y + to[r] * row_bytes, 0, bytes);
      } else {
        std::memcpy(y + to[r] * row_bytes, x + from[r] * row_bytes, bytes);
      }
    }
  });
}

}  // namespace deltatrain::backend::cpu
