// short_conv_norm on the reference backend, which has no functions of its own for it and so runs
// the two plain ops: outputs against their loops, gradients against the complex step through both.
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "ops/reference/l2_norm.h"
#include "ops/reference/short_conv.h"
#include "ops/short_conv_norm.h"
#include "support/arrays.h"

namespace deltatrain::test {

namespace {

namespace loops = ops::reference;
using Arrays = std::vector<ArrayOf<Complex>>;

constexpr int64_t kRows = 9;
constexpr int64_t kHeads = 2;
constexpr int64_t kWidth = 3;
constexpr int64_t kChannels = 2 * kHeads * kWidth;
constexpr double kEps = 0.3;

Tensor tensor_of(const Array& array) {
  return {const_cast<double*>(array.values.data()), DType::kF64, array.shape};
}

// Half 0 or 1 of the channels as heads of its own.
template <class T>
ArrayOf<T> half_of(const ArrayOf<T>& u_RX, int64_t half) {
  ArrayOf<T> out({kRows, kHeads, kWidth});
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kHeads * kWidth; ++c) {
      out.values[static_cast<size_t>(r * kHeads * kWidth + c)] =
          u_RX.values[static_cast<size_t>(r * kChannels + half * kHeads * kWidth + c)];
    }
  }
  return out;
}

TEST(ShortConvNormTest, BackwardMatchesComplexStep) {
  const std::vector<int32_t> offsets = {0, 1, 6, 9};
  const Array x = normal({kRows, kChannels}, 1), w = normal({kChannels, 4}, 2);
  const Shape heads = {kRows, kHeads, kWidth};
  const Array dq = normal(heads, 3), dk = normal(heads, 4);
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        ArrayOf<Complex> u({kRows, kChannels}), inv_norm({kRows, kHeads});
        const Arrays& inputs = z;
        loops::short_conv_forward<Complex>(inputs[0].view(), inputs[1].view(),
                                           ops::Sequences{offsets, {}}, {}, {}, u.view());
        for (int64_t half : {0, 1}) {
          const ArrayOf<Complex> part = half_of(u, half);
          loops::l2_norm_forward<Complex>(part.view(), kEps, out[static_cast<size_t>(half)].view(),
                                          inv_norm.view());
        }
      },
      {x, w}, {dq, dk});

  const auto reference = backend::make_backend(DeviceKind::kReference);
  Arena arena(reference->device().memory(), 1 << 20);
  const Context context = reference->context(arena, DType::kF64);
  const ops::Sequences sequences{offsets,
                                 Tensor(const_cast<int32_t*>(offsets.data()), DType::kI32, {4})};
  const Array q = poisoned(heads), k = poisoned(heads), q_norm = poisoned({kRows, kHeads}),
              k_norm = poisoned({kRows, kHeads});
  const ops::ShortConvNormForward forward{.x_RX = tensor_of(x),
                                          .weight_XW = tensor_of(w),
                                          .sequences = sequences,
                                          .q_RHK = tensor_of(q),
                                          .k_RHK = tensor_of(k),
                                          .q_inv_norm_RH = tensor_of(q_norm),
                                          .k_inv_norm_RH = tensor_of(k_norm),
                                          .eps = kEps};
  Array u({kRows, kChannels}), expected_norm({kRows, kHeads}), expected(heads);
  loops::short_conv_forward<double>(x.view(), w.view(), ops::Sequences{offsets, {}}, {}, {},
                                    u.view());
  const Array* const outputs[2] = {&q, &k};
  const Array* const norms[2] = {&q_norm, &k_norm};
  for (const bool by_parts : {false, true}) {
    if (by_parts) {
      ops::short_conv_norm_forward_by_parts(context, forward);
    } else {
      ops::short_conv_norm_forward(context, forward);
    }
    for (int64_t half : {0, 1}) {
      const Array part = half_of(u, half);
      loops::l2_norm_forward<double>(part.view(), kEps, expected.view(), expected_norm.view());
      EXPECT_EQ(outputs[half]->values, expected.values) << half;
      EXPECT_EQ(norms[half]->values, expected_norm.values) << half;
    }
    const Array dx = poisoned({kRows, kChannels}), start = normal({kChannels, 4}, 5);
    Array dw = start;
    const ops::ShortConvNormBackward backward{.dq_RHK = tensor_of(dq),
                                              .dk_RHK = tensor_of(dk),
                                              .q_RHK = tensor_of(q),
                                              .k_RHK = tensor_of(k),
                                              .q_inv_norm_RH = tensor_of(q_norm),
                                              .k_inv_norm_RH = tensor_of(k_norm),
                                              .x_RX = tensor_of(x),
                                              .weight_XW = tensor_of(w),
                                              .sequences = sequences,
                                              .dx_RX = tensor_of(dx),
                                              .dweight_XW = tensor_of(dw)};
    if (by_parts) {
      ops::short_conv_norm_backward_by_parts(context, backward);
    } else {
      ops::short_conv_norm_backward(context, backward);
    }
    for (size_t i = 0; i < dw.values.size(); ++i) dw.values[i] -= start.values[i];
    EXPECT_LE(relative_error(dx, want[0]), 1e-13) << by_parts;
    EXPECT_LE(relative_error(dw, want[1]), 1e-13) << by_parts;
  }
}

}  // namespace

}  // namespace deltatrain::test
