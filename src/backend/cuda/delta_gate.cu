// The gates of the delta rule: element by element, and for backward the sums over rows.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/activations.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/lanes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/pack.cuh"

namespace deltatrain::backend::cuda {

namespace {

using ops::DecayForm;
constexpr int kBlock = 256;
constexpr int64_t kPartials = 528;  // rows of partial sums, and blocks per column block of backward
constexpr int kVector = 4;  // decays of one head that a thread takes at once, where K allows it
constexpr int kAhead = 8;   // rows of backward loaded before the first is used

struct GateForm {
  DecayForm form;
  float bound;
  float beta_scale;
  Divider channels;  // K: column / K is the head
};

// The work of a row: first its decays, kColumns at a time, then its strengths.
struct RowItems {
  int64_t num_decay_items;
  int64_t num_items;
};

// log(1 + exp(x)). With bf16 storage by the fast instructions, to 2e-5 of itself: the logarithm of
// 1 + e loses what e has below 1, so small e take three terms of the series.
template <class T>
__device__ __forceinline__ float softplus(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)));
  } else {
    const float e = __expf(-fabsf(x));
    const float small = e * (1.0F - e * (0.5F - e * (1.0F / 3.0F)));
    return fmaxf(x, 0.0F) + (e < 0.02F ? small : __logf(1.0F + e));
  }
}

template <class T>
__device__ __forceinline__ float log_decay(const GateForm& form, float x, float scale) {
  if (form.form == DecayForm::kSoftplus) return -scale * softplus<T>(x);
  return form.bound * sigmoid<T>(scale * x);
}

// Grid: one thread per item. Bytes per decay: a in, 4 out.
template <class T, int kColumns>
__global__ void __launch_bounds__(kBlock)
    delta_gate_forward_kernel(const T* a, int64_t a_stride, const T* b, int64_t b_stride,
                              const float* A_log, const float* dt_bias, float* g, float* beta,
                              int64_t R, int64_t X, int64_t G, RowItems items, Divider item_divider,
                              GateForm form) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (index >= R * items.num_items) return;
  const int64_t row = item_divider.divide(static_cast<uint32_t>(index));
  const int64_t item = index - row * items.num_items;
  if (item >= items.num_decay_items) {
    const int64_t head = item - items.num_decay_items;
    beta[row * G + head] = form.beta_scale * sigmoid<T>(to_float(b[row * b_stride + head]));
    return;
  }
  const int64_t column = item * kColumns;
  const float scale = expf(A_log[form.channels.divide(static_cast<uint32_t>(column))]);
  float x[kColumns];
  load_values(a + row * a_stride + column, x);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) x[c] = log_decay<T>(form, x[c] + dt_bias[column + c], scale);
  store_values(g + row * X + column, x);
}

// Grid: column blocks x kPartials row walkers, column blocks first. A thread keeps to one item of a
// row and, where a row has fewer items than a block has threads, several rows are under way at
// once.
template <class T, int kColumns>
__global__ void __launch_bounds__(kBlock)
    delta_gate_backward_kernel(const float* dg, const float* dbeta, const T* a, int64_t a_stride,
                               const T* b, int64_t b_stride, const float* A_log,
                               const float* dt_bias, T* da, int64_t da_stride, T* db,
                               int64_t db_stride, float* partial_bias, float* partial_A, int64_t R,
                               int64_t X, int64_t G, RowItems items, int64_t column_blocks,
                               int items_per_block, GateForm form) {
  __shared__ float s_bias[kBlock][kColumns];
  __shared__ float s_A[kBlock][kColumns];
  const int64_t walker = blockIdx.x / column_blocks;
  const int rows_at_once = kBlock / items_per_block;
  const int my_row = static_cast<int>(threadIdx.x) / items_per_block;
  const int my_item = static_cast<int>(threadIdx.x) - my_row * items_per_block;
  const int64_t item = (blockIdx.x - walker * column_blocks) * items_per_block + my_item;
  const bool active = my_row < rows_at_once && item < items.num_items;
  const bool is_decay = active && item < items.num_decay_items;
  const int64_t column = item * kColumns;

  float sum_bias[kColumns] = {};
  float sum_A[kColumns] = {};
  float bias[kColumns] = {};
  float scale = 0;
  if (is_decay) {
    scale = expf(A_log[form.channels.divide(static_cast<uint32_t>(column))]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) bias[c] = dt_bias[column + c];
  }
  if (active) {
    const int64_t step = (gridDim.x / column_blocks) * rows_at_once;
    const int64_t first = walker * rows_at_once + my_row;
    if (is_decay) {
      for (int64_t base = first; base < R; base += kAhead * step) {
        Pack<T, kColumns> in_a[kAhead];
        Pack<float, kColumns> in_dg[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t row = base + i * step;
          if (row >= R) continue;
          in_a[i] = load_pack<T, kColumns>(a + row * a_stride + column);
          in_dg[i] = load_pack<float, kColumns>(dg + row * X + column);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t row = base + i * step;
          if (row >= R) continue;
          float x[kColumns];
          float d[kColumns];
          in_a[i].unpack(x);
          in_dg[i].unpack(d);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            x[c] += bias[c];
            if (form.form == DecayForm::kSoftplus) {
              sum_A[c] += d[c] * (-scale * softplus<T>(x[c]));
              d[c] *= -scale * sigmoid<T>(x[c]);
            } else {
              const float s = sigmoid<T>(scale * x[c]);
              d[c] *= form.bound * s * (1.0F - s) * scale;
              sum_A[c] += d[c] * x[c];
            }
            sum_bias[c] += d[c];
          }
          store_values(da + row * da_stride + column, d);
        }
      }
    } else {
      const int64_t head = item - items.num_decay_items;
      for (int64_t base = first; base < R; base += kAhead * step) {
        float x[kAhead];
        float d[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t row = base + i * step;
          x[i] = row < R ? to_float(b[row * b_stride + head]) : 0.0F;
          d[i] = row < R ? dbeta[row * G + head] : 0.0F;
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int64_t row = base + i * step;
          const float s = sigmoid<T>(x[i]);
          if (row < R)
            db[row * db_stride + head] = from_float<T>(d[i] * form.beta_scale * s * (1.0F - s));
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    s_bias[threadIdx.x][c] = sum_bias[c];
    s_A[threadIdx.x][c] = sum_A[c];
  }
  __syncthreads();
  if (my_row == 0 && is_decay) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float total_bias = 0;
      float total_A = 0;
      for (int i = 0; i < rows_at_once; ++i) {
        total_bias += s_bias[i * items_per_block + my_item][c];
        total_A += s_A[i * items_per_block + my_item][c];
      }
      partial_bias[walker * X + column + c] = total_bias;
      s_A[my_item][c] = total_A;  // row 0 of this item; the other rows have been read
    }
  }
  __syncthreads();
  // This block's part of every head's sum, 0 where it has none of its channels.
  const int64_t first_column = (blockIdx.x - walker * column_blocks) * items_per_block * kColumns;
  const int64_t end_column = min(first_column + int64_t{items_per_block} * kColumns, X);
  const int64_t K = form.channels.divisor;
  for (int64_t head = threadIdx.x; head < G; head += kBlock) {
    float sum = 0;
    const int64_t begin = max(head * K, first_column);
    const int64_t end = min((head + 1) * K, end_column);
    for (int64_t i = begin - first_column; i < end - first_column; ++i)
      sum += s_A[i / kColumns][i % kColumns];
    partial_A[blockIdx.x * G + head] = sum;
  }
}

template <class Args>
GateForm gate_form(const Args& args, int64_t K) {
  return GateForm{args.form, static_cast<float>(args.lower_bound),
                  static_cast<float>(args.beta_scale), Divider(K)};
}

}  // namespace

void delta_gate_forward(const Context& context, const ops::DeltaGateForward& args) {
  CudaDevice& device = cuda_device(context);
  const int64_t R = args.a_RGK.size(0);
  const int64_t G = args.a_RGK.size(1);
  const int64_t K = args.a_RGK.size(2);
  with_activation_type("delta_gate_forward", args.a_RGK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const auto run = [&](auto kernel, int columns) {
      const RowItems items{G * K / columns, G * K / columns + G};
      DELTATRAIN_CHECK(R * items.num_items <= INT_MAX, std::to_string(R * items.num_items));
      launch(device, "delta_gate_forward_kernel", kernel, divide_up(R * items.num_items, kBlock),
             kBlock, 0, pointer<const T>(args.a_RGK), args.a_RGK.stride(0),
             pointer<const T>(args.b_RG), args.b_RG.stride(0), pointer<const float>(args.A_log_G),
             pointer<const float>(args.dt_bias_GK), pointer<float>(args.g_RGK),
             pointer<float>(args.beta_RG), R, G * K, G, items, Divider(items.num_items),
             gate_form(args, K));
    };
    if (K % kVector == 0 && is_aligned(args.a_RGK, kVector * sizeof(T)) &&
        is_aligned(args.g_RGK, 16)) {
      run(delta_gate_forward_kernel<T, kVector>, kVector);
    } else {
      run(delta_gate_forward_kernel<T, 1>, 1);
    }
  });
}

void delta_gate_backward(const Context& context, const ops::DeltaGateBackward& args) {
  const int64_t R = args.a_RGK.size(0);
  const int64_t G = args.a_RGK.size(1);
  const int64_t K = args.a_RGK.size(2);
  const Arena::ScratchScope scope(*context.arena);
  const Tensor partial_bias = context.arena->scratch(DType::kF32, {kPartials, G * K});
  // As many column blocks as there are without vectors.
  const Tensor partial_A =
      context.arena->scratch(DType::kF32, {kPartials * divide_up(G * K + G, kBlock), G});
  int64_t num_partials_A = 0;
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  with_activation_type("delta_gate_backward", args.a_RGK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const auto run = [&](auto kernel, int columns) {
      const RowItems items{G * K / columns, G * K / columns + G};
      const int64_t column_blocks = divide_up(items.num_items, kBlock);
      const int items_per_block = static_cast<int>(divide_up(items.num_items, column_blocks));
      num_partials_A = kPartials * column_blocks;
      launch(device, "delta_gate_backward_kernel", kernel, kPartials * column_blocks, kBlock, 0,
             pointer<const float>(args.dg_RGK), pointer<const float>(args.dbeta_RG),
             pointer<const T>(args.a_RGK), args.a_RGK.stride(0), pointer<const T>(args.b_RG),
             args.b_RG.stride(0), pointer<const float>(args.A_log_G),
             pointer<const float>(args.dt_bias_GK), pointer<T>(args.da_RGK), args.da_RGK.stride(0),
             pointer<T>(args.db_RG), args.db_RG.stride(0), pointer<float>(partial_bias),
             pointer<float>(partial_A), R, G * K, G, items, column_blocks, items_per_block,
             gate_form(args, K));
    };
    if (K % kVector == 0 && is_aligned(args.a_RGK, kVector * sizeof(T)) &&
        is_aligned(args.da_RGK, kVector * sizeof(T)) && is_aligned(args.dg_RGK, 16)) {
      run(delta_gate_backward_kernel<T, kVector>, kVector);
    } else {
      run(delta_gate_backward_kernel<T, 1>, 1);
    }
  });
  add_partial_rows(device, partial_bias, pointer<float>(args.ddt_bias_GK));
  add_partial_rows(device, partial_A.rows(0, num_partials_A), pointer<float>(args.dA_log_G));
}

}  // namespace deltatrain::backend::cuda
