// A plan has to know what the real calls take, without touching memory.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "backend/registry.h"
#include "base/error.h"

namespace deltatrain::backend {

namespace {

struct Sizes {
  std::vector<int32_t> offsets;
  int64_t H, G, K, V;
  bool per_channel;
};

// Arguments in the memory of one context's device, all zero.
class Memory {
 public:
  explicit Memory(const Context& context) : context_(context) {}

  Tensor f32(const Shape& shape) { return take(DType::kF32, shape); }
  Tensor i32(const Shape& shape) { return take(DType::kI32, shape); }
  Tensor bytes(int64_t n) { return take(DType::kU8, {n}); }
  ops::Sequences sequences(const std::vector<int32_t>& offsets) {
    const Tensor copy = i32({static_cast<int64_t>(offsets.size())});
    context_.device->copy_to_device(copy.raw(), offsets.data(), offsets.size() * sizeof(int32_t));
    return {offsets, copy};
  }

 private:
  Tensor take(DType dtype, const Shape& shape) {
    const auto size = static_cast<size_t>(shape.num_elements() * dtype_bytes(dtype));
    blocks_.emplace_back(context_.device->memory(), size);
    context_.device->fill_zero(blocks_.back().data(), size);
    return blocks_.back().tensor(dtype, shape);
  }

  Context context_;
  std::vector<Buffer> blocks_;
};

int64_t run_delta_rule(const Context& context, Memory& memory, const Sizes& s) {
  const int64_t R = s.offsets.back(), decays = s.per_channel ? s.K : 1;
  const auto S = static_cast<int64_t>(s.offsets.size()) - 1;
  ops::GatedDeltaRuleForward f;
  f.q_RHK = memory.f32({R, s.H, s.K});
  f.k_RHK = memory.f32({R, s.H, s.K});
  f.v_RGV = memory.f32({R, s.G, s.V});
  f.g_RGK = memory.f32({R, s.G, decays});
  f.beta_RG = memory.f32({R, s.G});
  f.sequences = memory.sequences(s.offsets);
  f.o_RGV = memory.f32({R, s.G, s.V});
  f.initial_state_SGKV = memory.f32({S, s.G, s.K, s.V});
  const int64_t saved_bytes = ops::gated_delta_rule_saved_bytes(context, f);
  f.saved = memory.bytes(saved_bytes);
  ops::gated_delta_rule_forward(context, f);
  ops::GatedDeltaRuleBackward b;
  b.do_RGV = memory.f32({R, s.G, s.V});
  b.q_RHK = f.q_RHK;
  b.k_RHK = f.k_RHK;
  b.v_RGV = f.v_RGV;
  b.g_RGK = f.g_RGK;
  b.beta_RG = f.beta_RG;
  b.sequences = f.sequences;
  b.initial_state_SGKV = f.initial_state_SGKV;
  b.saved = f.saved;
  b.dq_RHK = memory.f32({R, s.H, s.K});
  b.dk_RHK = memory.f32({R, s.H, s.K});
  b.dv_RGV = memory.f32({R, s.G, s.V});
  b.dg_RGK = memory.f32({R, s.G, decays});
  b.dbeta_RG = memory.f32({R, s.G});
  b.d_initial_state_SGKV = memory.f32({S, s.G, s.K, s.V});
  ops::gated_delta_rule_backward(context, b);
  return saved_bytes;
}

int64_t run_attention(const Context& context, Memory& memory, const Sizes& s) {
  const int64_t R = s.offsets.back();
  ops::CausalAttentionForward f;
  f.q_RHK = memory.f32({R, s.H, s.K});
  f.k_RHK = memory.f32({R, s.H, s.K});
  f.v_RHV = memory.f32({R, s.H, s.V});
  f.sequences = memory.sequences(s.offsets);
  f.o_RHV = memory.f32({R, s.H, s.V});
  f.lse_RH = memory.f32({R, s.H});
  ops::causal_attention_forward(context, f);
  ops::causal_attention_backward(
      context,
      {memory.f32({R, s.H, s.V}), f.q_RHK, f.k_RHK, f.v_RHV, f.o_RHV, f.lse_RH, f.sequences,
       memory.f32({R, s.H, s.K}), memory.f32({R, s.H, s.K}), memory.f32({R, s.H, s.V}), 1});
  return 0;
}

// Every other op once; D and N follow from the heads.
int64_t run_the_rest(const Context& context, Memory& memory, const Sizes& s) {
  const int64_t R = s.offsets.back(), D = s.G * s.V, decays = s.per_channel ? s.K : 1, N = 3 * D;
  const ops::Sequences sequences = memory.sequences(s.offsets);
  const Tensor x = memory.f32({R, D}), y = memory.f32({R, D}), w_DD = memory.f32({D, D});
  ops::linear_forward(context, {x, w_DD, memory.f32({D}), y});
  ops::linear_backward(context,
                       {y, x, w_DD, memory.f32({R, D}), memory.f32({D, D}), memory.f32({D})});
  const Tensor ids = memory.i32({R}), table = memory.f32({N, D});
  ops::embedding_forward(context, {ids, table, x});
  ops::embedding_backward(context, {ids, x, table});
  const Tensor w_D = memory.f32({D}), inv_R = memory.f32({R}), dw_D = memory.f32({D});
  ops::rms_norm_forward(context, {x, Tensor(), w_D, Tensor(), y, inv_R});
  ops::rms_norm_backward(context, {y, x, w_D, inv_R, Tensor(), memory.f32({R, D}), dw_D});
  const Tensor o = memory.f32({R, s.G, s.V}), z = memory.f32({R, s.G, s.V}),
               u = memory.f32({R, s.G, s.V});
  const Tensor w_V = memory.f32({s.V}), inv_RG = memory.f32({R, s.G}), dw_V = memory.f32({s.V});
  ops::gated_rms_norm_forward(context, {o, z, w_V, u, inv_RG});
  ops::gated_rms_norm_backward(
      context, {u, o, z, w_V, inv_RG, memory.f32({R, s.G, s.V}), memory.f32({R, s.G, s.V}), dw_V});
  const Tensor w_DW = memory.f32({D, 4}), dw_DW = memory.f32({D, 4});
  ops::short_conv_forward(context, {x, w_DW, sequences, Tensor(), Tensor(), y});
  ops::short_conv_backward(context, {y, x, w_DW, sequences, memory.f32({R, D}), dw_DW});
  const Tensor q = memory.f32({R, s.H, s.K}), inv_RH = memory.f32({R, s.H}),
               qn = memory.f32({R, s.H, s.K});
  ops::l2_norm_forward(context, {q, qn, inv_RH});
  ops::l2_norm_backward(context, {q, qn, inv_RH, memory.f32({R, s.H, s.K})});
  const Tensor qk = memory.f32({R, 2 * s.H * s.K}), w_XW = memory.f32({2 * s.H * s.K, 4});
  ops::short_conv_norm_forward(
      context, {qk, w_XW, sequences, Tensor(), Tensor(), q, qn, inv_RH, memory.f32({R, s.H})});
  ops::short_conv_norm_backward(
      context, {q, qn, q, qn, inv_RH, inv_RH, qk, w_XW, sequences, memory.f32({R, 2 * s.H * s.K}),
                memory.f32({2 * s.H * s.K, 4})});
  const Tensor a = memory.f32({R, s.G, decays}), b = memory.f32({R, s.G}),
               A_log = memory.f32({s.G});
  const Tensor dt = memory.f32({s.G, decays}), g = memory.f32({R, s.G, decays}),
               beta = memory.f32({R, s.G});
  ops::delta_gate_forward(context, {a, b, A_log, dt, g, beta});
  ops::delta_gate_backward(
      context, {g, beta, a, b, A_log, dt, memory.f32({R, s.G, decays}), memory.f32({R, s.G}),
                memory.f32({s.G}), memory.f32({s.G, decays})});
  ops::rotary(context, {q, qn, sequences});
  const Tensor rope = memory.f32({R, 8}), k = memory.f32({R, s.H, s.K + 8});
  ops::mla_key_forward(context, {q, rope, k});
  ops::mla_key_backward(context, {k, qn, rope});
  const Tensor gate_up = memory.f32({R, 2 * D});
  ops::swiglu_forward(context, {gate_up, y});
  ops::swiglu_backward(context, {y, gate_up, gate_up, x});
  ops::linear_swiglu_forward(context, {x, memory.f32({2 * D, D}), gate_up, y});
  ops::linear_swiglu_backward(context, {x, w_DD, gate_up, gate_up});
  ops::cross_entropy(context, {memory.f32({R, N}), ids, inv_R, Tensor()});
  const int64_t P = 100 * D;
  const auto scalars = static_cast<ops::StepScalars*>(memory.bytes(sizeof(ops::StepScalars)).raw());
  const Tensor gradient = memory.f32({P});
  ops::sum_of_squares(context, {gradient, scalars});
  ops::finish_gradient_norm(context, {scalars});
  ops::adamw(context, {memory.f32({P}), Tensor(), gradient, memory.f32({P}), memory.f32({P}),
                       memory.bytes((P + 63) / 64), scalars});
  ops::add(context, {x, y, x});
  ops::convert(context, {x, y});
  ops::sum_to(context, {inv_R, static_cast<double*>(memory.bytes(8).raw())});
  return 0;
}

class PlanBackendTest : public testing::TestWithParam<DeviceKind> {
 protected:
  using Run = std::function<int64_t(const Context&, Memory&, const Sizes&)>;

  void expect_same(const Run& run) {
    for (const Sizes& sizes :
         {Sizes{{0, 130}, 1, 2, 64, 64, false}, Sizes{{0, 1, 64, 200}, 2, 2, 32, 64, true},
          Sizes{{0, 1}, 1, 1, 16, 16, false}}) {
      const auto real = make_backend(GetParam());
      const auto planned = make_backend(DeviceKind::kPlan, {.planned = GetParam()});
      Arena real_arena(real->device().memory(), size_t{64} << 20), plan_arena;
      const Context real_context = real->context(real_arena, DType::kF32);
      const Context plan_context = planned->context(plan_arena, DType::kF32);
      Memory real_memory(real_context), plan_memory(plan_context);
      EXPECT_EQ(run(plan_context, plan_memory, sizes), run(real_context, real_memory, sizes));
      real->device().synchronize();
      EXPECT_EQ(plan_arena.peak_bytes(), real_arena.peak_bytes());
    }
  }
};

TEST_P(PlanBackendTest, DeltaRuleTakesWhatTheRealOneTakes) { expect_same(run_delta_rule); }
TEST_P(PlanBackendTest, AttentionTakesWhatTheRealOneTakes) { expect_same(run_attention); }
TEST_P(PlanBackendTest, OtherOpsTakeWhatTheRealOnesTake) { expect_same(run_the_rest); }

TEST_P(PlanBackendTest, ChecksArguments) {
  const auto planned = make_backend(DeviceKind::kPlan, {.planned = GetParam()});
  Arena arena;
  const Context context = planned->context(arena, DType::kF32);
  Memory memory(context);
  EXPECT_THROW(ops::l2_norm_forward(
                   context, {memory.f32({3, 1, 4}), memory.f32({3, 1, 4}), memory.f32({2, 1})}),
               ShapeError);
}

TEST_P(PlanBackendTest, TakesNoMemory) {
  const auto planned = make_backend(DeviceKind::kPlan, {.planned = GetParam()});
  Arena arena;
  const Context context = planned->context(arena, DType::kF32);
  Memory memory(context);
  run_delta_rule(context, memory, {{0, 1 << 24}, 16, 16, 128, 128, true});  // some hundred GiB
  EXPECT_EQ(context.device->kind(), DeviceKind::kPlan);
}

INSTANTIATE_TEST_SUITE_P(Backends, PlanBackendTest, testing::ValuesIn(available_backends()),
                         [](const auto& kind) {
                           return std::string(device_kind_name(kind.param));
                         });

}  // namespace

}  // namespace deltatrain::backend
