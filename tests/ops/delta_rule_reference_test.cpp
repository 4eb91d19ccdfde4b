// The reference of the delta rule: its backward against
// the complex step, and its two forms against each other.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/reference/gated_delta_rule_chunked.h"
#include "support/arrays.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

namespace loops = ops::reference;
using Arrays = std::vector<ArrayOf<Complex>>;

struct Problem {
  std::vector<int32_t> offsets;
  int64_t H, G, K, V;
  int64_t decays;  // per head: 1 or K
  Array q, k, v, g, beta, state, do_, d_final;

  Problem(std::vector<int32_t> sequence_offsets, int64_t heads, int64_t value_heads,
          int64_t key_width, int64_t value_width, int64_t num_decays, double mean_decay)
      : offsets(std::move(sequence_offsets)),
        H(heads),
        G(value_heads),
        K(key_width),
        V(value_width),
        decays(num_decays) {
    const int64_t R = offsets.back();
    const auto S = static_cast<int64_t>(offsets.size()) - 1;
    q = normal({R, H, K}, 1, 1 / std::sqrt(static_cast<double>(K)));
    k = normal({R, H, K}, 2, 1 / std::sqrt(static_cast<double>(K)));
    v = normal({R, G, V}, 3);
    g = normal({R, G, decays}, 4, mean_decay);
    for (double& x : g.values) x = -std::abs(x);
    beta = normal({R, G}, 5);
    for (double& x : beta.values) x = 1 / (1 + std::exp(-x));
    state = normal({S, G, K, V}, 6);
    do_ = normal({R, G, V}, 7);
    d_final = normal({S, G, K, V}, 8);
  }

  loops::DeltaInputs<double> inputs() const {
    return {q.view(), k.view(), v.view(), g.view(), beta.view(), {offsets, {}}, state.view(), 0.6};
  }
};

struct Result {
  Array o, final_state, dq, dk, dv, dg, dbeta, d_initial;

  explicit Result(const Problem& p)
      : o(poisoned(p.do_.shape)),
        final_state(poisoned(p.state.shape)),
        dq(poisoned(p.q.shape)),
        dk(poisoned(p.k.shape)),
        dv(poisoned(p.v.shape)),
        dg(poisoned(p.g.shape)),
        dbeta(poisoned(p.beta.shape)),
        d_initial(poisoned(p.state.shape)) {}

  loops::DeltaGradients<double> gradients() {
    return {dq.view(), dk.view(), dv.view(), dg.view(), dbeta.view(), d_initial.view()};
  }
};

Result by_recurrence(const Problem& p) {
  Result r(p);
  loops::gated_delta_rule_forward<double>(p.inputs(), r.o.view(), r.final_state.view());
  loops::gated_delta_rule_backward<double>(p.inputs(), p.do_.view(), p.d_final.view(),
                                           r.gradients());
  return r;
}

Result by_chunks(const Problem& p, int64_t chunk) {
  Result r(p);
  loops::gated_delta_rule_chunked_forward<double>(p.inputs(), chunk, r.o.view(),
                                                  r.final_state.view());
  loops::gated_delta_rule_chunked_backward<double>(p.inputs(), chunk, p.do_.view(),
                                                   p.d_final.view(), r.gradients());
  return r;
}

void expect_equal(const Result& got, const Result& want, double bound) {
  EXPECT_LE(relative_error(got.o, want.o), bound) << "o_RGV";
  EXPECT_LE(relative_error(got.final_state, want.final_state), bound) << "final_state_SGKV";
  EXPECT_LE(relative_error(got.dq, want.dq), bound) << "dq_RHK";
  EXPECT_LE(relative_error(got.dk, want.dk), bound) << "dk_RHK";
  EXPECT_LE(relative_error(got.dv, want.dv), bound) << "dv_RGV";
  EXPECT_LE(relative_error(got.dg, want.dg), bound) << "dg_RGK";
  EXPECT_LE(relative_error(got.dbeta, want.dbeta), bound) << "dbeta_RG";
  EXPECT_LE(relative_error(got.d_initial, want.d_initial), bound) << "d_initial_state_SGKV";
}

void expect_complex_step(const Problem& p) {
  const auto want = complex_step(
      [&p](const Arrays& z, Arrays& out) {
        const loops::DeltaInputs<Complex> in = {z[0].view(), z[1].view(), z[2].view(),
                                                z[3].view(), z[4].view(), {p.offsets, {}},
                                                z[5].view(), 0.6};
        loops::gated_delta_rule_forward<Complex>(in, out[0].view(), out[1].view());
      },
      {p.q, p.k, p.v, p.g, p.beta, p.state}, {p.do_, p.d_final});
  const Result got = by_recurrence(p);
  EXPECT_LE(relative_error(got.dq, want[0]), verify::kComplexStep) << "dq_RHK";
  EXPECT_LE(relative_error(got.dk, want[1]), verify::kComplexStep) << "dk_RHK";
  EXPECT_LE(relative_error(got.dv, want[2]), verify::kComplexStep) << "dv_RGV";
  EXPECT_LE(relative_error(got.dg, want[3]), verify::kComplexStep) << "dg_RGK";
  EXPECT_LE(relative_error(got.dbeta, want[4]), verify::kComplexStep) << "dbeta_RG";
  EXPECT_LE(relative_error(got.d_initial, want[5]), verify::kComplexStep) << "d_initial_state_SGKV";
}

TEST(GatedDeltaRuleReferenceTest, BackwardMatchesComplexStep) {
  for (const int64_t heads : {1, 2}) {
    expect_complex_step(Problem({0, 1, 6, 9}, heads, 2, 3, 4, 1, 0.4));
    expect_complex_step(Problem({0, 1, 6, 9}, heads, 2, 3, 4, 3, 0.4));
  }
}

TEST(GatedDeltaRuleReferenceTest, BackwardMatchesComplexStepWhereBetaIsZero) {
  Problem p({0, 6}, 1, 1, 3, 2, 1, 0.4);
  for (double& x : p.beta.values) x = 0;
  expect_complex_step(p);
}

TEST(GatedDeltaRuleReferenceTest, BackwardMatchesComplexStepWhereGatesClose) {
  Problem p({0, 6}, 1, 1, 3, 2, 3, 0.4);
  p.g.values[4] = -320;
  p.g.values[9] = 0;
  expect_complex_step(p);
}

TEST(GatedDeltaRuleReferenceTest, ChunksEqualRecurrence) {
  for (const int64_t chunk : {1, 4, 16, 64}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    const Problem gdn({0, 1, 18, 83}, 1, 2, 8, 6, 1, 0.3), kda({0, 1, 18, 83}, 2, 2, 6, 8, 6, 0.3);
    expect_equal(by_chunks(gdn, chunk), by_recurrence(gdn), verify::kTwoFormsF64);
    expect_equal(by_chunks(kda, chunk), by_recurrence(kda), verify::kTwoFormsF64);
  }
}

TEST(GatedDeltaRuleReferenceTest, ChunksEqualRecurrenceAtExtremes) {
  for (const int64_t decays : {1, 8}) {
    Problem open({0, 70}, 1, 2, 8, 6, decays, 0), closed({0, 70}, 1, 2, 8, 6, decays, 40);
    expect_equal(by_chunks(open, 64), by_recurrence(open), verify::kTwoFormsF64);
    expect_equal(by_chunks(closed, 64), by_recurrence(closed), verify::kTwoFormsF64);
    Problem spike({0, 70}, 1, 2, 8, 6, decays, 0.01);  // one token forgets everything
    for (int64_t i = 0; i < 2 * decays; ++i)
      spike.g.values[static_cast<size_t>(33 * 2 * decays + i)] = -320;
    expect_equal(by_chunks(spike, 64), by_recurrence(spike), verify::kTwoFormsF64);
    Problem same_key({0, 70}, 1, 2, 8, 6, decays, 0);  // the worst triangular system
    for (size_t i = 0; i < same_key.k.values.size(); ++i) same_key.k.values[i] = i % 8 == 0 ? 1 : 0;
    for (double& x : same_key.beta.values) x = 1;
    expect_equal(by_chunks(same_key, 64), by_recurrence(same_key), verify::kTwoFormsF64);
  }
}

}  // namespace

}  // namespace deltatrain::test
