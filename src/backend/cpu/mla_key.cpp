#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"

namespace deltatrain::backend::cpu {

void mla_key_forward(const Context&, const ops::MlaKeyForward& args) {
  const int64_t H = args.k_RHK.size(1);
  const int64_t K = args.k_RHK.size(2);
  const int64_t nope = args.k_nope_RHX.size(2);
  const float* k_nope = args.k_nope_RHX.data<float>();
  const float* k_rope = args.k_rope_RX.data<float>();
  float* k = args.k_RHK.data<float>();
  const int64_t nope_stride = args.k_nope_RHX.stride(0);
  const int64_t nope_head_stride = args.k_nope_RHX.stride(1);
  const int64_t rope_stride = args.k_rope_RX.stride(0);
  parallel_rows(args.k_RHK.size(0), H * K, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < H; ++h) {
        float* to = k + (r * H + h) * K;
        std::memcpy(to, k_nope + r * nope_stride + h * nope_head_stride,
                    static_cast<size_t>(nope) * sizeof(float));
        std::memcpy(to + nope, k_rope + r * rope_stride,
                    static_cast<size_t>(K - nope) * sizeof(float));
      }
    }
  });
}

void mla_key_backward(const Context&, const ops::MlaKeyBackward& args) {
  const int64_t H = args.dk_RHK.size(1);
  const int64_t K = args.dk_RHK.size(2);
  const int64_t nope = args.dk_nope_RHX.size(2);
  const float* dk = args.dk_RHK.data<float>();
  float* dk_nope = args.dk_nope_RHX.data<float>();
  float* dk_rope = args.dk_rope_RX.data<float>();
  const int64_t dk_stride = args.dk_RHK.stride(0);
  const int64_t dk_head_stride = args.dk_RHK.stride(1);
  const int64_t nope_stride = args.dk_nope_RHX.stride(0);
  const int64_t nope_head_stride = args.dk_nope_RHX.stride(1);
  const int64_t rope_stride = args.dk_rope_RX.stride(0);
  parallel_rows(args.dk_RHK.size(0), H * K, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* rope = dk_rope + r * rope_stride;
      std::fill(rope, rope + (K - nope), 0.0F);
      for (int64_t h = 0; h < H; ++h) {
        const float* from = dk + r * dk_stride + h * dk_head_stride;
        std::memcpy(dk_nope + r * nope_stride + h * nope_head_stride, from,
                    static_cast<size_t>(nope) * sizeof(float));
#pragma omp simd
        for (int64_t i = 0; i < K - nope; ++i) rope[i] += from[nope + i];
      }
    }
  });
}

}  // namespace deltatrain::backend::cpu
