// The whole mixer core (l2_norm of q and k, gates, delta rule) of the reference in f64 against
// values made by another program: tests/golden/README.md. The files hold f32: the bound is their own
// rounding with room to spare.
#include <gtest/gtest.h>

#include "formats/safetensors.h"
#include "ops/reference/delta_gate.h"
#include "ops/reference/gated_delta_rule.h"
#include "ops/reference/l2_norm.h"
#include "support/arrays.h"
#include "support/test_files.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

namespace loops = ops::reference;

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : file_(golden_path("delta_rule_" + name + ".safetensors")) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  // The tensor in another shape of the same size.
  Array get(const std::string& name, const Shape& shape) const {
    const formats::StoredTensor& stored = file_.at(name);
    EXPECT_EQ(stored.shape.num_elements(), shape.num_elements()) << name;
    Array array(stored.shape);
    formats::read_tensor(stored, Tensor(array.values.data(), DType::kF64, stored.shape), "golden",
                         name);
    array.shape = shape;
    return array;
  }
  Shape shape(const std::string& name) const { return file_.at(name).shape; }

 private:
  formats::SafetensorsFile file_;
};

// Files cut to their first sequence have no gradients of the gate's parameters: those are sums over all sequences.
bool is_cut(const std::string& name) { return name == "gdn_64x64" || name == "kda_32x64"; }

class DeltaRuleGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(DeltaRuleGoldenTest, ReferenceAgrees) {
  const GoldenFile golden(GetParam());
  const int64_t B = golden.shape("q")[0], T = golden.shape("q")[1], H = golden.shape("q")[2],
                K = golden.shape("q")[3];
  const int64_t G = golden.shape("v")[2], V = golden.shape("v")[3], R = B * T;
  const int64_t decays = golden.shape("a").rank() == 4 ? K : 1;
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b <= B; ++b) offsets.push_back(static_cast<int32_t>(b * T));
  const Shape qk = {R, H, K}, vo = {R, G, V}, raw_a = {R, G, decays}, raw_b = {R, G},
              states = {B, G, K, V};

  const auto in = [](const Array& array) { return array.view(); };
  const Array raw_q = golden.get("q", qk), raw_k = golden.get("k", qk), v = golden.get("v", vo);
  const Array a = golden.get("a", raw_a), b = golden.get("b", raw_b);
  const Array A_log = golden.get("A_log", {G}), dt_bias = golden.get("dt_bias", {G, decays});
  const Array state =
      golden.has("initial_state") ? golden.get("initial_state", states) : Array(states);
  const Array do_ = golden.get("do", vo), d_final = golden.get("d_final_state", states);

  Array q = poisoned(qk), k = poisoned(qk), q_inv = poisoned({R, H}), k_inv = poisoned({R, H});
  loops::l2_norm_forward<double>(in(raw_q), 1e-6, q.view(), q_inv.view());
  loops::l2_norm_forward<double>(in(raw_k), 1e-6, k.view(), k_inv.view());
  Array g = poisoned(raw_a), beta = poisoned(raw_b);
  const auto form = ops::DecayForm::kSoftplus;
  loops::delta_gate_forward<double>(in(a), in(b), in(A_log), in(dt_bias), form, 0, 1, g.view(),
                                    beta.view());
  const loops::DeltaInputs<double> inputs = {
      in(q),    in(k),         in(v),     in(g),
      in(beta), {offsets, {}}, in(state), 1 / std::sqrt(static_cast<double>(K))};
  Array o = poisoned(vo), final_state = poisoned(states);
  loops::gated_delta_rule_forward<double>(inputs, o.view(), final_state.view());

  Array dq = poisoned(qk), dk = poisoned(qk), dv = poisoned(vo), dg = poisoned(raw_a),
        dbeta = poisoned(raw_b);
  Array dstate = poisoned(states);
  loops::gated_delta_rule_backward<double>(
      inputs, in(do_), in(d_final),
      {dq.view(), dk.view(), dv.view(), dg.view(), dbeta.view(), dstate.view()});
  Array draw_q = poisoned(qk), draw_k = poisoned(qk), da = poisoned(raw_a), db = poisoned(raw_b);
  loops::l2_norm_backward<double>(in(dq), in(q), in(q_inv), draw_q.view());
  loops::l2_norm_backward<double>(in(dk), in(k), in(k_inv), draw_k.view());
  Array dA_log({G}), ddt_bias({G, decays});
  loops::delta_gate_backward<double>(in(dg), in(dbeta), in(a), in(b), in(A_log), in(dt_bias), form,
                                     0, 1, da.view(), db.view(), dA_log.view(), ddt_bias.view());

  int compared = 0;
  const auto expect = [&](const Array& got, const std::string& name) {
    ASSERT_TRUE(golden.has(name)) << name;
    ++compared;
    EXPECT_LE(relative_error(got, golden.get(name, got.shape)), verify::kFileOfF32InF64) << name;
  };
  expect(o, "o");
  expect(final_state, "final_state");
  expect(draw_q, "grad.q");
  expect(draw_k, "grad.k");
  expect(dv, "grad.v");
  expect(da, "grad.a");
  expect(db, "grad.b");
  const bool cut = is_cut(GetParam());
  if (!cut) expect(dA_log, "grad.A_log");
  if (!cut) expect(ddt_bias, "grad.dt_bias");
  if (golden.has("initial_state")) expect(dstate, "grad.initial_state");
  EXPECT_EQ(compared, 7 + (cut ? 0 : 2) + (golden.has("initial_state") ? 1 : 0));
}

INSTANTIATE_TEST_SUITE_P(Files, DeltaRuleGoldenTest,
                         testing::Values("gdn_t1", "gdn_t63", "gdn_t65_extreme", "gdn_64x64",
                                         "gdn_128x128", "kda_t1", "kda_t64", "kda_t129_extreme",
                                         "kda_32x64", "kda_128x128", "kda_gva"),
                         [](const auto& file) { return std::string(file.param); });

}  // namespace

}  // namespace deltatrain::test
