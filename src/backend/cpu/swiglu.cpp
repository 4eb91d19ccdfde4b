// Rows are long enough that the processor's own prefetching loses their halves at every row; blocks
// of kBlock numbers are asked for kAhead numbers before they are used, which halves the time.
#include "backend/cpu/kernels.h"
#include "backend/cpu/parallel.h"
#include "backend/cpu/prefetch.h"
#include "backend/cpu/vector_math.h"

namespace deltatrain::backend::cpu {

namespace {

constexpr int64_t kBlock = 64;
constexpr int64_t kAhead = 256;

// body(begin, end) over [0, F) of one row [gate | up] while what follows is fetched.
template <class Body>
void for_blocks(const float* gate, int64_t F, const Body& body) {
  for (int64_t begin = 0; begin < F; begin += kBlock) {
    const int64_t ahead = begin + kAhead;
    const float* next = ahead < F ? gate + ahead : gate + F + ahead;  // past the row: the next one
    prefetch(next, kBlock);
    prefetch(next + F, kBlock);
    body(begin, std::min(F, begin + kBlock));
  }
}

}  // namespace

void swiglu_forward(const Context&, const ops::SwigluForward& args) {
  const int64_t F = args.y_RF.size(1);
  const float* gate_up = args.gate_up_RX.data<float>();
  float* y = args.y_RF.data<float>();
  parallel_rows(args.y_RF.size(0), 2 * F, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* gate = gate_up + r * 2 * F;
      const float* up = gate + F;
      float* y_row = y + r * F;
      for_blocks(gate, F, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t f = begin; f < end; ++f) y_row[f] = silu_f32(gate[f]) * up[f];
      });
    }
  });
}

void swiglu_backward(const Context&, const ops::SwigluBackward& args) {
  const int64_t F = args.dy_RF.size(1);
  const float* dy = args.dy_RF.data<float>();
  const float* gate_up = args.gate_up_RX.data<float>();
  float* dgate_up = args.dgate_up_RX.data<float>();
  float* y = args.y_RF.data<float>();
  parallel_rows(args.dy_RF.size(0), 2 * F, [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* dy_row = dy + r * F;
      const float* gate = gate_up + r * 2 * F;
      const float* up = gate + F;
      float* dgate = dgate_up + r * 2 * F;
      float* dup = dgate + F;
      float* y_row = y == nullptr ? nullptr : y + r * F;
      for_blocks(gate, F, [=](int64_t begin, int64_t end) {
        if (y_row != nullptr) {
#pragma omp simd
          for (int64_t f = begin; f < end; ++f) y_row[f] = silu_f32(gate[f]) * up[f];
        }
#pragma omp simd
        for (int64_t f = begin; f < end; ++f) {
          const float g = gate[f];
          const float u = up[f];
          const float s = sigmoid_f32(g);
          dgate[f] = dy_row[f] * u * (s * (1.0F + g * (1.0F - s)));
          dup[f] = dy_row[f] * (g * s);
        }
      });
    }
  });
}

}  // namespace deltatrain::backend::cpu
