#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"

namespace deltatrain::backend::cpu {

void embedding_forward(const Context&, const ops::EmbeddingForward& args) {
  const int64_t D = args.y_RD.size(1);
  const int32_t* ids = args.ids_R.data<int32_t>();
  const float* weight = args.weight_ND.data<float>();
  float* y = args.y_RD.data<float>();
  const int64_t weight_stride = args.weight_ND.stride(0);
  const int64_t y_stride = args.y_RD.stride(0);
  parallel_rows(args.y_RD.size(0), D, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const size_t bytes = static_cast<size_t>(D) * sizeof(float);
      if (ids[r] < 0) {
        std::memset(y + r * y_stride, 0, bytes);
      } else {
        std::memcpy(y + r * y_stride, weight + ids[r] * weight_stride, bytes);
      }
    }
  });
}

// Each task owns some columns of the whole table and goes through the rows in order, so no two
// tasks write the same element and the sums have the order of the rows.
void embedding_backward(const Context&, const ops::EmbeddingBackward& args) {
  constexpr int64_t kColumns = 64;
  const int64_t R = args.dy_RD.size(0);
  const int64_t D = args.dy_RD.size(1);
  const int32_t* ids = args.ids_R.data<int32_t>();
  const float* dy = args.dy_RD.data<float>();
  float* dweight = args.dweight_ND.data<float>();
  const int64_t dy_stride = args.dy_RD.stride(0);
  const int64_t dweight_stride = args.dweight_ND.stride(0);
  parallel_for(divide_up(D, kColumns), [=](int64_t chunk) {
    const int64_t begin = chunk * kColumns;
    const int64_t count = std::min(kColumns, D - begin);
    for (int64_t r = 0; r < R; ++r) {
      const float* from = dy + r * dy_stride + begin;
      float* to = dweight + ids[r] * dweight_stride + begin;
#pragma omp simd
      for (int64_t d = 0; d < count; ++d) to[d] += from[d];
    }
  });
}

}  // namespace deltatrain::backend::cpu
