// The gates of the delta rule: element by element, and for backward the sums over rows.
#include <algorithm>

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

__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)));
}

__device__ __forceinline__ float log_decay(const GateForm& form, float x, float scale) {
  if (form.form == DecayForm::kSoftplus) return -scale * softplus(x);
  return form.bound * sigmoid<float>(scale * x);
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
    beta[row * G + head] = form.beta_scale * sigmoid<float>(to_float(b[row * b_stride + head]));
    return;
  }
  const int64_t column = item * kColumns;
  const float scale = expf(A_log[form.channels.divide(static_cast<uint32_t>(column))]);
  float x[kColumns];
  load_values(a + row * a_stride + column, x);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) x[c] = log_decay(form, x[c] + dt_bias[column + c], scale);
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
    for (int64_t row = walker * rows_at_once + my_row; row < R; row += step) {
      if (is_decay) {
        float x[kColumns];
        float d[kColumns];
        load_values(a + row * a_stride + column, x);
        load_values(dg + row * X + column, d);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          x[c] += bias[c];
          if (form.form == DecayForm::kSoftplus) {
            sum_A[c] += d[c] * (-scale * softplus(x[c]));
            d[c] *= -scale * sigmoid<float>(x[c]);
          } else {
            const float s = sigmoid<float>(scale * x[c]);
            d[c] *= form.bound * s * (1.0F - s) * scale;
            sum_A[c] += d[c] * x[c];
          }
          sum_bias[c] += d[c];
        }
        store_values(da + row * da_stride + column, d);
      } else {
        const int64_t head = item - items.num_decay_items;
        const float s = sigmoid<float>(to_float(b[row * b_stride + head]));
        db[row * db_stride + head] =
            from_float<T>(dbeta[row * G + head] * form.beta_scale * s * (1.0F - s));
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
      partial_A[walker * X + column + c] = total_A;
    }
  }
}

// Grid: one block per head. dA_log[g] += sum over walkers and the head's channels.
__global__ void __launch_bounds__(kBlock)
    delta_gate_backward_decay_kernel(const float* partial_A, float* dA_log, int64_t X, int64_t K,
                                     Divider channels) {
  __shared__ double s_scratch[kBlock / kWarpSize];
  const int64_t head = blockIdx.x;
  double sum = 0;
  for (uint32_t i = threadIdx.x; i < kPartials * K; i += kBlock) {
    const uint32_t walker = channels.divide(i);
    sum += partial_A[walker * X + head * K + (i - walker * channels.divisor)];
  }
  sum = sum_over_block<kBlock>(sum, s_scratch);
  if (threadIdx.x == 0) dA_log[head] += static_cast<float>(sum);
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
  const Tensor partial_A = context.arena->scratch(DType::kF32, {kPartials, G * K});
  if (context.arena->is_planning()) return;
  CudaDevice& device = cuda_device(context);
  with_activation_type("delta_gate_backward", args.a_RGK.dtype(), [&](auto element) {
    using T = typename decltype(element)::type;
    const auto run = [&](auto kernel, int columns) {
      const RowItems items{G * K / columns, G * K / columns + G};
      const int64_t column_blocks = divide_up(items.num_items, kBlock);
      const int items_per_block = static_cast<int>(divide_up(items.num_items, column_blocks));
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
  launch(device, "delta_gate_backward_decay_kernel", delta_gate_backward_decay_kernel, G, kBlock, 0,
         pointer<const float>(partial_A), pointer<float>(args.dA_log_G), G * K, K, Divider(K));
}

}  // namespace deltatrain::backend::cuda
