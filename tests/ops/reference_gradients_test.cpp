// Every backward of the reference loops against the complex step through the forward beside it.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/reference/causal_attention.h"
#include "ops/reference/cross_entropy.h"
#include "ops/reference/delta_gate.h"
#include "ops/reference/embedding.h"
#include "ops/reference/gated_rms_norm.h"
#include "ops/reference/l2_norm.h"
#include "ops/reference/linear.h"
#include "ops/reference/mla_key.h"
#include "ops/reference/rms_norm.h"
#include "ops/reference/rotary.h"
#include "ops/reference/short_conv.h"
#include "ops/reference/swiglu.h"
#include "support/arrays.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

namespace loops = ops::reference;
using Arrays = std::vector<ArrayOf<Complex>>;

constexpr double kExact = verify::kComplexStep;

View<const Complex> in(const ArrayOf<Complex>& array) { return array.view(); }
View<const double> in(const Array& array) { return array.view(); }

void expect_close(const Array& got, const Array& want, const char* name) {
  EXPECT_LE(relative_error(got, want), kExact) << name;
}

// What a gradient that accumulates added to `start`.
Array minus(Array sum, const Array& start) {
  for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] -= start.values[i];
  return sum;
}

ops::Sequences sequences_of(const std::vector<int32_t>& offsets) { return {offsets, {}}; }

const std::vector<int32_t> kOffsets = {0, 1, 6, 9};

TEST(LinearReferenceTest, BackwardMatchesComplexStep) {
  const Array x = normal({4, 5}, 1), w = normal({3, 5}, 2), b = normal({3}, 3),
              dy = normal({4, 3}, 4);
  const auto want = complex_step(
      [](const Arrays& z, Arrays& out) {
        loops::linear_forward<Complex>(in(z[0]), in(z[1]), in(z[2]), ops::GradMode::kOverwrite,
                                       out[0].view());
      },
      {x, w, b}, {dy});
  Array dx = poisoned({4, 5}), dw = poisoned({3, 5}), db = poisoned({3});
  loops::linear_backward<double>(in(dy), in(x), in(w), ops::GradMode::kOverwrite,
                                 ops::GradMode::kOverwrite, dx.view(), dw.view(), db.view());
  expect_close(dx, want[0], "dx_RD");
  expect_close(dw, want[1], "dweight_XD");
  expect_close(db, want[2], "dbias_X");
  Array sum_x = normal({4, 5}, 5), sum_w = normal({3, 5}, 6), sum_b = normal({3}, 7);
  const Array start_x = sum_x, start_w = sum_w, start_b = sum_b;
  loops::linear_backward<double>(in(dy), in(x), in(w), ops::GradMode::kAccumulate,
                                 ops::GradMode::kAccumulate, sum_x.view(), sum_w.view(),
                                 sum_b.view());
  expect_close(minus(sum_x, start_x), want[0], "dx_RD, accumulated");
  expect_close(minus(sum_w, start_w), want[1], "dweight_XD, accumulated");
  expect_close(minus(sum_b, start_b), want[2], "dbias_X, accumulated");
}

TEST(EmbeddingReferenceTest, BackwardMatchesComplexStep) {
  const std::vector<int32_t> ids = {2, 0, 2, 4};
  const View<const int32_t> ids_R(ids.data(), {4});
  const Array w = normal({5, 3}, 1), dy = normal({4, 3}, 2);
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        loops::embedding_forward<Complex>(ids_R, in(z[0]), out[0].view());
      },
      {w}, {dy});
  Array dw = normal({5, 3}, 3);
  const Array start = dw;
  loops::embedding_backward<double>(ids_R, in(dy), dw.view());
  expect_close(minus(dw, start), want[0], "dweight_ND");
}

TEST(RmsNormReferenceTest, BackwardMatchesComplexStep) {
  const Array x = normal({3, 5}, 1), residual = normal({3, 5}, 2), w = normal({5}, 3);
  const Array dsum = normal({3, 5}, 4), dy = normal({3, 5}, 5);
  const double eps = 0.3;  // large enough to show where it belongs
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        ArrayOf<Complex> inv_rms({3});
        loops::rms_norm_forward<Complex>(in(z[0]), in(z[1]), in(z[2]), eps, out[0].view(),
                                         out[1].view(), inv_rms.view());
      },
      {x, residual, w}, {dsum, dy});
  Array sum = poisoned({3, 5}), y = poisoned({3, 5}), inv_rms = poisoned({3}),
        dx = poisoned({3, 5});
  loops::rms_norm_forward<double>(in(x), in(residual), in(w), eps, sum.view(), y.view(),
                                  inv_rms.view());
  Array dw = normal({5}, 6);
  const Array start = dw;
  loops::rms_norm_backward<double>(in(dy), in(sum), in(w), in(inv_rms), in(dsum), dx.view(),
                                   dw.view());
  expect_close(dx, want[0], "dx_RD as the gradient of x");
  expect_close(dx, want[1], "dx_RD as the gradient of residual");
  expect_close(minus(dw, start), want[2], "dweight_D");
}

TEST(RmsNormReferenceTest, WorksWithoutResidual) {
  const Array x = normal({3, 5}, 1), w = normal({5}, 3), dy = normal({3, 5}, 5);
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        ArrayOf<Complex> inv_rms({3});
        loops::rms_norm_forward<Complex>(in(z[0]), {}, in(z[1]), 1e-6, {}, out[0].view(),
                                         inv_rms.view());
      },
      {x, w}, {dy});
  Array y = poisoned({3, 5}), inv_rms = poisoned({3}), dx = poisoned({3, 5}), dw({5});
  loops::rms_norm_forward<double>(in(x), {}, in(w), 1e-6, {}, y.view(), inv_rms.view());
  loops::rms_norm_backward<double>(in(dy), in(x), in(w), in(inv_rms), {}, dx.view(), dw.view());
  expect_close(dx, want[0], "dx_RD");
  expect_close(dw, want[1], "dweight_D");
}

TEST(GatedRmsNormReferenceTest, BackwardMatchesComplexStep) {
  for (const auto activation : {ops::GateActivation::kSilu, ops::GateActivation::kSigmoid}) {
    const Array o = normal({3, 2, 4}, 1), gate = normal({3, 2, 4}, 2, 2), w = normal({4}, 3),
                dy = normal({3, 2, 4}, 4);
    const double eps = 0.3;
    const auto want = complex_step(
        [&](const Arrays& z, Arrays& out) {
          ArrayOf<Complex> inv_rms({3, 2});
          loops::gated_rms_norm_forward<Complex>(in(z[0]), in(z[1]), in(z[2]), eps, activation,
                                                 out[0].view(), inv_rms.view());
        },
        {o, gate, w}, {dy});
    Array y = poisoned({3, 2, 4}), inv_rms = poisoned({3, 2}), do_ = poisoned({3, 2, 4}),
          dgate = poisoned({3, 2, 4});
    loops::gated_rms_norm_forward<double>(in(o), in(gate), in(w), eps, activation, y.view(),
                                          inv_rms.view());
    Array dw = normal({4}, 5);
    const Array start = dw;
    loops::gated_rms_norm_backward<double>(in(dy), in(o), in(gate), in(w), in(inv_rms), activation,
                                           do_.view(), dgate.view(), dw.view());
    expect_close(do_, want[0], "do_RGV");
    expect_close(dgate, want[1], "dgate_RGV");
    expect_close(minus(dw, start), want[2], "dweight_V");
  }
}

TEST(ShortConvReferenceTest, BackwardMatchesComplexStep) {
  for (const int64_t taps : {1, 4, 8}) {
    const Array x = normal({9, 3}, 1), w = normal({3, taps}, 2), dy = normal({9, 3}, 3);
    const auto want = complex_step(
        [&](const Arrays& z, Arrays& out) {
          loops::short_conv_forward<Complex>(in(z[0]), in(z[1]), sequences_of(kOffsets), {}, {},
                                             out[0].view());
        },
        {x, w}, {dy});
    Array dx = poisoned({9, 3}), dw = normal({3, taps}, 4);
    const Array start = dw;
    loops::short_conv_backward<double>(in(dy), in(x), in(w), sequences_of(kOffsets), dx.view(),
                                       dw.view());
    expect_close(dx, want[0], "dx_RX");
    expect_close(minus(dw, start), want[1], "dweight_XW");
  }
}

TEST(ShortConvReferenceTest, CarriedHistoryEqualsOneSequence) {
  const Array x = normal({9, 3}, 1), w = normal({3, 4}, 2);
  Array whole = poisoned({9, 3});
  loops::short_conv_forward<double>(in(x), in(w), sequences_of({0, 9}), {}, {}, whole.view());
  for (const int64_t cut : {1, 2, 5, 8}) {
    const auto rows = [](const Array& a, int64_t begin, int64_t end) {
      return View<const double>(a.values.data() + begin * 3, {end - begin, 3});
    };
    Array history({1, 3, 3}), y = poisoned({9, 3});
    const auto out = [&y](int64_t begin, int64_t end) {
      return View<double>(y.values.data() + begin * 3, {end - begin, 3});
    };
    loops::short_conv_forward<double>(rows(x, 0, cut), in(w),
                                      sequences_of({0, static_cast<int32_t>(cut)}), in(history),
                                      history.view(), out(0, cut));
    loops::short_conv_forward<double>(rows(x, cut, 9), in(w),
                                      sequences_of({0, static_cast<int32_t>(9 - cut)}), in(history),
                                      history.view(), out(cut, 9));
    EXPECT_EQ(y.values, whole.values) << "cut at " << cut;
  }
}

TEST(L2NormReferenceTest, BackwardMatchesComplexStep) {
  const Array x = normal({3, 2, 4}, 1), dy = normal({3, 2, 4}, 2);
  const double eps = 0.3;
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        ArrayOf<Complex> inv_norm({3, 2});
        loops::l2_norm_forward<Complex>(in(z[0]), eps, out[0].view(), inv_norm.view());
      },
      {x}, {dy});
  Array y = poisoned({3, 2, 4}), inv_norm = poisoned({3, 2}), dx = poisoned({3, 2, 4});
  loops::l2_norm_forward<double>(in(x), eps, y.view(), inv_norm.view());
  loops::l2_norm_backward<double>(in(dy), in(y), in(inv_norm), dx.view());
  expect_close(dx, want[0], "dx_RHK");
}

TEST(DeltaGateReferenceTest, BackwardMatchesComplexStep) {
  for (const auto form : {ops::DecayForm::kSoftplus, ops::DecayForm::kBounded}) {
    for (const int64_t K : {1, 3}) {
      const Array a = normal({5, 2, K}, 1, 4), b = normal({5, 2}, 2, 4), A_log = normal({2}, 3),
                  dt = normal({2, K}, 4);
      const Array dg = normal({5, 2, K}, 5), dbeta = normal({5, 2}, 6);
      const auto want = complex_step(
          [&](const Arrays& z, Arrays& out) {
            loops::delta_gate_forward<Complex>(in(z[0]), in(z[1]), in(z[2]), in(z[3]), form, -5, 2,
                                               out[0].view(), out[1].view());
          },
          {a, b, A_log, dt}, {dg, dbeta});
      Array da = poisoned({5, 2, K}), db = poisoned({5, 2}), dA_log({2}), ddt({2, K});
      loops::delta_gate_backward<double>(in(dg), in(dbeta), in(a), in(b), in(A_log), in(dt), form,
                                         -5, 2, da.view(), db.view(), dA_log.view(), ddt.view());
      expect_close(da, want[0], "da_RGK");
      expect_close(db, want[1], "db_RG");
      expect_close(dA_log, want[2], "dA_log_G");
      expect_close(ddt, want[3], "ddt_bias_GK");
    }
  }
}

TEST(RotaryReferenceTest, BackwardMatchesComplexStep) {
  const std::vector<int32_t> starts = {3, 0, 1000};
  const View<const int32_t> starts_S(starts.data(), {3});
  const Array x = normal({9, 2, 6}, 1), dy = normal({9, 2, 6}, 2);
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        loops::rotary<Complex>(in(z[0]), sequences_of(kOffsets), starts_S, 500000,
                               ops::RotaryDirection::kForward, out[0].view());
      },
      {x}, {dy});
  Array dx = poisoned({9, 2, 6});
  loops::rotary<double>(in(dy), sequences_of(kOffsets), starts_S, 500000,
                        ops::RotaryDirection::kBackward, dx.view());
  expect_close(dx, want[0], "the gradient of x_RHX");
}

TEST(MlaKeyReferenceTest, BackwardMatchesComplexStep) {
  const Array nope = normal({3, 2, 4}, 1), rope = normal({3, 2}, 2), dk = normal({3, 2, 6}, 3);
  const auto want = complex_step(
      [](const Arrays& z, Arrays& out) {
        loops::mla_key_forward<Complex>(in(z[0]), in(z[1]), out[0].view());
      },
      {nope, rope}, {dk});
  Array dnope = poisoned({3, 2, 4}), drope = poisoned({3, 2});
  loops::mla_key_backward<double>(in(dk), dnope.view(), drope.view());
  expect_close(dnope, want[0], "dk_nope_RHX");
  expect_close(drope, want[1], "dk_rope_RX");
}

TEST(CausalAttentionReferenceTest, BackwardMatchesComplexStep) {
  const Array q = normal({9, 2, 4}, 1), k = normal({9, 2, 4}, 2), v = normal({9, 2, 3}, 3),
              do_ = normal({9, 2, 3}, 4);
  const double scale = 0.7;
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        loops::causal_attention_forward<Complex>(in(z[0]), in(z[1]), in(z[2]),
                                                 sequences_of(kOffsets), scale, out[0].view(), {},
                                                 {}, {}, {});
      },
      {q, k, v}, {do_});
  Array o = poisoned({9, 2, 3}), lse = poisoned({9, 2});
  loops::causal_attention_forward<double>(in(q), in(k), in(v), sequences_of(kOffsets), scale,
                                          o.view(), lse.view(), {}, {}, {});
  Array dq = poisoned({9, 2, 4}), dk = poisoned({9, 2, 4}), dv = poisoned({9, 2, 3});
  loops::causal_attention_backward<double>(in(do_), in(q), in(k), in(v), in(o), in(lse),
                                           sequences_of(kOffsets), scale, dq.view(), dk.view(),
                                           dv.view());
  expect_close(dq, want[0], "dq_RHK");
  expect_close(dk, want[1], "dk_RHK");
  expect_close(dv, want[2], "dv_RHV");
}

TEST(CausalAttentionReferenceTest, CacheEqualsOneSequence) {
  const Array q = normal({9, 2, 4}, 1), k = normal({9, 2, 4}, 2), v = normal({9, 2, 3}, 3);
  Array whole = poisoned({9, 2, 3});
  loops::causal_attention_forward<double>(in(q), in(k), in(v), sequences_of({0, 9}), 0.7,
                                          whole.view(), {}, {}, {}, {});
  Array k_cache = poisoned({1, 10, 2, 4}), v_cache = poisoned({1, 10, 2, 3}),
        o = poisoned({9, 2, 3});
  int32_t length = 0;
  for (const int64_t count : {4, 1, 3, 1}) {
    const auto rows = [&](const Array& a) {
      return View<const double>(a.values.data() + length * 2 * a.shape[2], {count, 2, a.shape[2]});
    };
    loops::causal_attention_forward<double>(
        rows(q), rows(k), rows(v), sequences_of({0, static_cast<int32_t>(count)}), 0.7,
        View<double>(o.values.data() + length * 6, {count, 2, 3}), {}, k_cache.view(),
        v_cache.view(), View<const int32_t>(&length, {1}));
    length += static_cast<int32_t>(count);
  }
  EXPECT_EQ(o.values, whole.values);
}

TEST(SwigluReferenceTest, BackwardMatchesComplexStep) {
  const Array gate_up = normal({3, 8}, 1, 3), dy = normal({3, 4}, 2);
  const auto want = complex_step(
      [](const Arrays& z, Arrays& out) { loops::swiglu_forward<Complex>(in(z[0]), out[0].view()); },
      {gate_up}, {dy});
  Array y = poisoned({3, 4}), again = poisoned({3, 4}), d = poisoned({3, 8});
  loops::swiglu_forward<double>(in(gate_up), y.view());
  loops::swiglu_backward<double>(in(dy), in(gate_up), d.view(), again.view());
  expect_close(d, want[0], "dgate_up_RX");
  EXPECT_EQ(again.values, y.values);
}

TEST(CrossEntropyReferenceTest, GradientMatchesComplexStep) {
  const std::vector<int32_t> labels = {1, ops::kIgnoredLabel, 0, 6};
  const View<const int32_t> labels_R(labels.data(), {4});
  const Array logits = normal({4, 7}, 1, 5);
  const double grad_scale = 0.37;
  const auto want = complex_step(
      [&](const Arrays& z, Arrays& out) {
        Arrays copy = z;
        loops::cross_entropy<Complex>(copy[0].view(), labels_R, 1,
                                      ops::CrossEntropy::Gradient::kNone, out[0].view(), {});
      },
      {logits}, {Array({4}, grad_scale)});
  Array d = logits, loss = poisoned({4}), lse = poisoned({4});
  loops::cross_entropy<double>(d.view(), labels_R, grad_scale, ops::CrossEntropy::Gradient::kWrite,
                               loss.view(), lse.view());
  expect_close(d, want[0], "dlogits_RN");
  EXPECT_EQ(loss.values[1], 0);
}

}  // namespace

}  // namespace deltatrain::test
