#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/prefetch.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

template <ops::GateActivation kActivation>
void forward(const ops::GatedRmsNormForward& args) {
  const int64_t G = args.o_RGV.size(1);
  const int64_t V = args.o_RGV.size(2);
  const float* o = args.o_RGV.data<float>();
  const float* gate = args.gate_RGV.data<float>();
  const float* weight = args.weight_V.data<float>();
  float* y = args.y_RGV.data<float>();
  float* inv_rms = args.inv_rms_RG.data<float>();
  const int64_t gate_stride = args.gate_RGV.stride(0);
  const int64_t gate_head_stride = args.gate_RGV.stride(1);
  const double eps = args.eps;
  parallel_rows(args.o_RGV.size(0), G * V, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < G; ++h) {
        const float* o_row = o + (r * G + h) * V;
        const float* z = gate + r * gate_stride + h * gate_head_stride;
        float* y_row = y + (r * G + h) * V;
        prefetch(z + gate_stride, V);
        const float square_sum = sum_over(V, [=](auto at) { return at(o_row) * at(o_row); });
        const auto scale = static_cast<float>(
            1.0 / std::sqrt(static_cast<double>(square_sum) / static_cast<double>(V) + eps));
        inv_rms[r * G + h] = scale;
#pragma omp simd
        for (int64_t v = 0; v < V; ++v) {
          const float act =
              kActivation == ops::GateActivation::kSilu ? silu_f32(z[v]) : sigmoid_f32(z[v]);
          y_row[v] = o_row[v] * scale * weight[v] * act;
        }
      }
    }
  });
}

template <ops::GateActivation kActivation>
void backward(const ops::GatedRmsNormBackward& args, float* partials) {
  const int64_t R = args.o_RGV.size(0);
  const int64_t G = args.o_RGV.size(1);
  const int64_t V = args.o_RGV.size(2);
  const float* dy = args.dy_RGV.data<float>();
  const float* o = args.o_RGV.data<float>();
  const float* gate = args.gate_RGV.data<float>();
  const float* weight = args.weight_V.data<float>();
  const float* inv_rms = args.inv_rms_RG.data<float>();
  float* d_o = args.do_RGV.data<float>();
  float* dgate = args.dgate_RGV.data<float>();
  const int64_t o_stride = args.o_RGV.stride(0);
  const int64_t o_head_stride = args.o_RGV.stride(1);
  const int64_t gate_stride = args.gate_RGV.stride(0);
  const int64_t gate_head_stride = args.gate_RGV.stride(1);
  const int64_t do_stride = args.do_RGV.stride(0);
  const int64_t do_head_stride = args.do_RGV.stride(1);
  const int64_t dgate_stride = args.dgate_RGV.stride(0);
  const int64_t dgate_head_stride = args.dgate_RGV.stride(1);
  parallel_for(num_sum_blocks(R), [=](int64_t block) {
    float* dweight = partials + block * V;
    std::fill(dweight, dweight + V, 0.0F);
    for (int64_t r = block * kSumRows; r < std::min(R, (block + 1) * kSumRows); ++r) {
      for (int64_t h = 0; h < G; ++h) {
        const float* dy_row = dy + (r * G + h) * V;
        const float* o_row = o + r * o_stride + h * o_head_stride;
        const float* z_row = gate + r * gate_stride + h * gate_head_stride;
        float* do_row = d_o + r * do_stride + h * do_head_stride;
        float* dgate_row = dgate + r * dgate_stride + h * dgate_head_stride;
        prefetch(z_row + gate_stride, V);
        const float scale = inv_rms[r * G + h];
        // do holds du = dy act(z) between the passes; it may be dy itself.
#pragma omp simd
        for (int64_t v = 0; v < V; ++v) {
          const float z = z_row[v];
          const float s = sigmoid_f32(z);
          const float dy_v = dy_row[v];
          const float normed = o_row[v] * scale;
          const bool silu = kActivation == ops::GateActivation::kSilu;
          const float act = silu ? z * s : s;
          const float slope = silu ? s * (1.0F + z * (1.0F - s)) : s * (1.0F - s);
          const float du = dy_v * act;
          dgate_row[v] = dy_v * normed * weight[v] * slope;
          dweight[v] += du * normed;
          do_row[v] = du;
        }
        const float dot =
            sum_over(V, [=](auto at) { return scale * at(o_row) * (at(weight) * at(do_row)); });
        const float c = dot / static_cast<float>(V);
#pragma omp simd
        for (int64_t v = 0; v < V; ++v)
          do_row[v] = scale * (weight[v] * do_row[v] - o_row[v] * scale * c);
      }
    }
  });
}

}  // namespace

void gated_rms_norm_forward(const Context&, const ops::GatedRmsNormForward& args) {
  if (args.activation == ops::GateActivation::kSilu) {
    forward<ops::GateActivation::kSilu>(args);
  } else {
    forward<ops::GateActivation::kSigmoid>(args);
  }
}

void gated_rms_norm_backward(const Context& context, const ops::GatedRmsNormBackward& args) {
  const int64_t V = args.o_RGV.size(2);
  const int64_t num_blocks = num_sum_blocks(args.o_RGV.size(0));
  const Arena::ScratchScope scope(*context.arena);
  float* partials = context.arena->scratch(DType::kF32, {num_blocks, V}).data<float>();
  if (context.arena->is_planning()) return;
  if (args.activation == ops::GateActivation::kSilu) {
    backward<ops::GateActivation::kSilu>(args, partials);
  } else {
    backward<ops::GateActivation::kSigmoid>(args, partials);
  }
  add_partial_sums(partials, num_blocks, V, args.dweight_V.data<float>());
}

}  // namespace deltatrain::backend::cpu
