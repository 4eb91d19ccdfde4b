// The mixer core (l2_norm of q and k, gates, delta rule) of the CPU backend in f32 against values
// made by another program: tests/golden/README.md.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/registry.h"
#include "formats/safetensors.h"
#include "ops/delta_gate.h"
#include "ops/gated_delta_rule.h"
#include "ops/l2_norm.h"
#include "support/arrays.h"
#include "support/test_files.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

class DeltaRuleCpuGoldenTest : public testing::TestWithParam<const char*> {};

// f32 tensors on the arena, by name of the file or new.
class Tensors {
 public:
  Tensors(const std::string& name, Arena& arena)
      : file_(golden_path("delta_rule_" + name + ".safetensors")), arena_(&arena) {}
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  Shape shape(const std::string& name) const { return file_.at(name).shape; }
  Tensor read(const std::string& name, const Shape& shape) const {
    const Tensor tensor = arena_->save(DType::kF32, shape);
    const formats::StoredTensor& stored = file_.at(name);
    formats::read_tensor(stored, Tensor(tensor.raw(), DType::kF32, stored.shape), "golden", name);
    return tensor;
  }
  Tensor filled(const Shape& shape, float value) const {
    const Tensor tensor = arena_->save(DType::kF32, shape);
    std::fill_n(tensor.data<float>(), tensor.num_elements(), value);
    return tensor;
  }
  Tensor poisoned(const Shape& shape) const { return filled(shape, std::nanf("")); }
  void expect_near(const Tensor& got, const std::string& name) {
    ASSERT_TRUE(has(name)) << name;
    ++num_compared_;
    EXPECT_LE(relative_error(array(got), array(read(name, got.shape()))), verify::kMixerF32) << name;
  }
  int num_compared() const { return num_compared_; }

 private:
  static Array array(const Tensor& tensor) {
    Array result(tensor.shape());
    std::copy_n(tensor.data<float>(), tensor.num_elements(), result.values.begin());
    return result;
  }
  formats::SafetensorsFile file_;
  Arena* arena_;
  int num_compared_ = 0;
};

// Files cut to their first sequence have no gradients of the gate's parameters: those are sums over all sequences.
bool is_cut(const std::string& name) { return name == "gdn_64x64" || name == "kda_32x64"; }

TEST_P(DeltaRuleCpuGoldenTest, Agrees) {
  const std::unique_ptr<backend::Backend> cpu = backend::make_backend(DeviceKind::kCpu);
  Arena arena(host_memory(), size_t{128} << 20);
  const Context context = cpu->context(arena, DType::kF32);
  Tensors t(GetParam(), arena);
  const int64_t B = t.shape("q")[0], T = t.shape("q")[1], H = t.shape("q")[2], K = t.shape("q")[3];
  const int64_t G = t.shape("v")[2], V = t.shape("v")[3], R = B * T;
  const int64_t decays = t.shape("a").rank() == 4 ? K : 1;
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b <= B; ++b) offsets.push_back(static_cast<int32_t>(b * T));
  const ops::Sequences sequences = {offsets, Tensor(offsets.data(), DType::kI32, {B + 1})};
  const Shape qk = {R, H, K}, vo = {R, G, V}, gates = {R, G, decays}, betas = {R, G},
              states = {B, G, K, V};

  const Tensor a = t.read("a", gates), b = t.read("b", betas), v = t.read("v", vo);
  const Tensor A_log = t.read("A_log", {G}), dt_bias = t.read("dt_bias", {G, decays});
  const Tensor q = t.poisoned(qk), k = t.poisoned(qk), q_inv = t.poisoned({R, H}),
               k_inv = t.poisoned({R, H});
  ops::l2_norm_forward(context, {.x_RHK = t.read("q", qk), .y_RHK = q, .inv_norm_RH = q_inv});
  ops::l2_norm_forward(context, {.x_RHK = t.read("k", qk), .y_RHK = k, .inv_norm_RH = k_inv});
  const Tensor g = t.poisoned(gates), beta = t.poisoned(betas);
  ops::delta_gate_forward(context, {.a_RGK = a,
                                    .b_RG = b,
                                    .A_log_G = A_log,
                                    .dt_bias_GK = dt_bias,
                                    .g_RGK = g,
                                    .beta_RG = beta});
  ops::GatedDeltaRuleForward forward;
  forward.q_RHK = q;
  forward.k_RHK = k;
  forward.v_RGV = v;
  forward.g_RGK = g;
  forward.beta_RG = beta;
  forward.sequences = sequences;
  if (t.has("initial_state")) forward.initial_state_SGKV = t.read("initial_state", states);
  forward.final_state_SGKV = t.poisoned(states);
  forward.o_RGV = t.poisoned(vo);
  forward.scale = 1 / std::sqrt(static_cast<double>(K));
  forward.saved = arena.save(DType::kU8, {ops::gated_delta_rule_saved_bytes(context, forward)});
  ops::gated_delta_rule_forward(context, forward);

  ops::GatedDeltaRuleBackward backward;
  backward.do_RGV = t.read("do", vo);
  backward.d_final_state_SGKV = t.read("d_final_state", states);
  backward.q_RHK = q;
  backward.k_RHK = k;
  backward.v_RGV = v;
  backward.g_RGK = g;
  backward.beta_RG = beta;
  backward.sequences = sequences;
  backward.initial_state_SGKV = forward.initial_state_SGKV;
  backward.saved = forward.saved;
  backward.dq_RHK = t.poisoned(qk);
  backward.dk_RHK = t.poisoned(qk);
  backward.dv_RGV = t.poisoned(vo);
  backward.dg_RGK = t.poisoned(gates);
  backward.dbeta_RG = t.poisoned(betas);
  if (t.has("initial_state")) backward.d_initial_state_SGKV = t.poisoned(states);
  backward.scale = forward.scale;
  ops::gated_delta_rule_backward(context, backward);
  const Tensor draw_q = t.poisoned(qk), draw_k = t.poisoned(qk);
  ops::l2_norm_backward(
      context, {.dy_RHK = backward.dq_RHK, .y_RHK = q, .inv_norm_RH = q_inv, .dx_RHK = draw_q});
  ops::l2_norm_backward(
      context, {.dy_RHK = backward.dk_RHK, .y_RHK = k, .inv_norm_RH = k_inv, .dx_RHK = draw_k});
  ops::DeltaGateBackward gate;
  gate.dg_RGK = backward.dg_RGK;
  gate.dbeta_RG = backward.dbeta_RG;
  gate.a_RGK = a;
  gate.b_RG = b;
  gate.A_log_G = A_log;
  gate.dt_bias_GK = dt_bias;
  gate.da_RGK = t.poisoned(gates);
  gate.db_RG = t.poisoned(betas);
  gate.dA_log_G = t.filled({G}, 0);
  gate.ddt_bias_GK = t.filled({G, decays}, 0);
  ops::delta_gate_backward(context, gate);

  t.expect_near(forward.o_RGV, "o");
  t.expect_near(forward.final_state_SGKV, "final_state");
  t.expect_near(draw_q, "grad.q");
  t.expect_near(draw_k, "grad.k");
  t.expect_near(backward.dv_RGV, "grad.v");
  t.expect_near(gate.da_RGK, "grad.a");
  t.expect_near(gate.db_RG, "grad.b");
  const bool cut = is_cut(GetParam());
  if (!cut) t.expect_near(gate.dA_log_G, "grad.A_log");
  if (!cut) t.expect_near(gate.ddt_bias_GK, "grad.dt_bias");
  if (t.has("initial_state")) t.expect_near(backward.d_initial_state_SGKV, "grad.initial_state");
  EXPECT_EQ(t.num_compared(), 7 + (cut ? 0 : 2) + (t.has("initial_state") ? 1 : 0));
}

INSTANTIATE_TEST_SUITE_P(Files, DeltaRuleCpuGoldenTest,
                         testing::Values("gdn_t1", "gdn_t63", "gdn_t65_extreme", "gdn_64x64",
                                         "gdn_128x128", "kda_t1", "kda_t64", "kda_t129_extreme",
                                         "kda_32x64", "kda_128x128", "kda_gva"),
                         [](const auto& file) { return std::string(file.param); });

}  // namespace

}  // namespace deltatrain::test
