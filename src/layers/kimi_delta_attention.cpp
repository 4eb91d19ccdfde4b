// Kimi Delta Attention mixer: one decay per key channel through a low-rank pair, low-rank sigmoid
// output gate with the model's only bias.
//
//   [q' | k' | v' | f0 | z0 | b] = x W_in^T     a = f0 W_f^T     z = z0 W_g^T + bias
//   y = delta_core(...)                         out = y W_o^T
//
// Source: arXiv:2510.26692; names and shapes as FLA's KimiDeltaAttention.

#include "layers/delta_core.h"
#include "layers/mixer.h"
#include "ops/linear.h"

namespace deltatrain::layers {

namespace {

DeltaCoreConfig kda_core(const ModelConfig& config) {
  DeltaCoreConfig core{.num_heads = config.num_heads,
                       .num_v_heads = config.num_v_heads,
                       .head_k = config.head_dim,
                       .head_v = config.head_v_dim(),
                       .gate_k = config.head_dim,
                       .conv_size = config.conv_size,
                       .norm_eps = config.norm_eps,
                       .output_gate = DeltaCoreConfig::OutputGate::kSigmoid,
                       .beta_scale = config.allow_neg_eigval ? 2.0 : 1.0};
  if (config.lower_bound) {
    core.decay = ops::DecayForm::kBounded;
    core.lower_bound = *config.lower_bound;
  }
  return core;
}

class KimiDeltaAttention final : public Mixer {
 public:
  KimiDeltaAttention(ParameterBuilder& builder, const std::string& prefix,
                     const ModelConfig& config)
      : core_(builder, prefix, kda_core(config),
              config.safe_gate ? Init::kZeroA : Init::kLogUniformA, 1.0) {
    const int64_t D = config.hidden_size, V = config.head_v_dim();
    const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
      return ParameterInfo{.name = prefix + name, .checkpoint_shape = {rows, columns}};
    };
    in_proj_ = builder.add_group(
        {matrix("q_proj.weight", config.key_dim(), D), matrix("k_proj.weight", config.key_dim(), D),
         matrix("v_proj.weight", config.value_dim(), D), matrix("f_proj.0.weight", V, D),
         matrix("g_proj.0.weight", V, D), matrix("b_proj.weight", config.num_v_heads, D)});
    f_proj_ = builder.add(matrix("f_proj.1.weight", config.num_v_heads * config.head_dim, V));
    g_proj_ = builder.add(matrix("g_proj.1.weight", config.value_dim(), V));
    g_bias_ = builder.add({.name = prefix + "g_proj.1.bias",
                           .checkpoint_shape = {config.value_dim()},
                           .init = Init::kZero,
                           .storage = Storage::kMaster});
    o_proj_ = builder.add(matrix("o_proj.weight", D, config.value_dim()));
  }

  void forward(const Pass& pass, const Tensor& x_RD, const Tensor& y_RD,
               const LayerState* state) override {
    const int64_t R = pass.num_rows();
    projected_RX_ = pass.save_activation({R, in_proj_.shape[0]});
    decay_RX_ = pass.save_activation({R, f_proj_.shape[0]});
    gate_RX_ = pass.save_activation({R, g_proj_.shape[0]});
    mixed_RX_ = pass.save_activation({R, core_.config().v_width()});
    ops::linear_forward(pass.context,
                        {.x_RD = x_RD, .weight_XD = pass.weight(in_proj_), .y_RX = projected_RX_});
    ops::linear_forward(
        pass.context,
        {.x_RD = f0(projected_RX_), .weight_XD = pass.weight(f_proj_), .y_RX = decay_RX_});
    ops::linear_forward(pass.context, {.x_RD = g0(projected_RX_),
                                       .weight_XD = pass.weight(g_proj_),
                                       .bias_X = pass.weight(g_bias_),
                                       .y_RX = gate_RX_});
    core_.forward(pass, parts(projected_RX_, decay_RX_, gate_RX_), mixed_RX_, state);
    ops::linear_forward(pass.context,
                        {.x_RD = mixed_RX_, .weight_XD = pass.weight(o_proj_), .y_RX = y_RD});
  }

  // The second products of the low-rank pairs are part of the core's step.
  void step(const Pass& pass, const StepInput& in, const Tensor& y_RD,
            const LayerState& state) override {
    const int64_t R = pass.num_rows();
    const Tensor projected_RX = pass.scratch_activation({R, in_proj_.shape[0]});
    const Tensor mixed_RX = pass.scratch_activation({R, core_.config().v_width()});
    ops::norm_linear(pass.context, in.product(pass, in_proj_, projected_RX));
    core_.step(pass, parts(projected_RX, Tensor(), Tensor()), mixed_RX, state,
               {.a_low_RP = f0(projected_RX),
                .a_weight = f_proj_,
                .z_low_RP = g0(projected_RX),
                .z_weight = g_proj_,
                .z_bias = g_bias_});
    ops::linear_forward(pass.context,
                        {.x_RD = mixed_RX, .weight_XD = pass.weight(o_proj_), .y_RX = y_RD});
  }

  void backward(const Pass& pass, const Tensor& dy_RD, const Tensor& x_RD,
                const Tensor& dx_RD) override {
    const int64_t R = pass.num_rows();
    const Arena::ScratchScope scope(*pass.context.arena);
    const Tensor d_projected_RX = pass.scratch_activation({R, in_proj_.shape[0]});
    const Tensor d_decay_RX = pass.scratch_activation({R, f_proj_.shape[0]});
    const Tensor d_gate_RX = pass.scratch_activation({R, g_proj_.shape[0]});
    const Tensor d_mixed_RX = pass.scratch_activation({R, core_.config().v_width()});
    ops::linear_backward(pass.context, {.dy_RX = dy_RD,
                                        .x_RD = mixed_RX_,
                                        .weight_XD = pass.weight(o_proj_),
                                        .dx_RD = d_mixed_RX,
                                        .dweight_XD = pass.gradient(o_proj_)});
    core_.backward(pass, d_mixed_RX, parts(projected_RX_, decay_RX_, gate_RX_),
                   parts(d_projected_RX, d_decay_RX, d_gate_RX));
    ops::linear_backward(pass.context, {.dy_RX = d_decay_RX,
                                        .x_RD = f0(projected_RX_),
                                        .weight_XD = pass.weight(f_proj_),
                                        .dx_RD = f0(d_projected_RX),
                                        .dweight_XD = pass.gradient(f_proj_)});
    ops::linear_backward(pass.context, {.dy_RX = d_gate_RX,
                                        .x_RD = g0(projected_RX_),
                                        .weight_XD = pass.weight(g_proj_),
                                        .dx_RD = g0(d_projected_RX),
                                        .dweight_XD = pass.gradient(g_proj_),
                                        .dbias_X = pass.gradient(g_bias_)});
    ops::linear_backward(pass.context, {.dy_RX = d_projected_RX,
                                        .x_RD = x_RD,
                                        .weight_XD = pass.weight(in_proj_),
                                        .dx_RD = dx_RD,
                                        .dweight_XD = pass.gradient(in_proj_)});
  }

  StateShape state_shape(int64_t num_sequences, int64_t) const override {
    return core_.state_shape(num_sequences);
  }

 private:
  int64_t qkv_width() const { return core_.config().qk_width() + core_.config().v_width(); }
  Tensor f0(const Tensor& projected_RX) const {
    return projected_RX.columns(qkv_width(), qkv_width() + core_.config().head_v);
  }
  Tensor g0(const Tensor& projected_RX) const {
    const int64_t at = qkv_width() + core_.config().head_v;
    return projected_RX.columns(at, at + core_.config().head_v);
  }
  DeltaCore::Inputs parts(const Tensor& projected_RX, const Tensor& decay_RX,
                          const Tensor& gate_RX) const {
    const int64_t qk = core_.config().qk_width(), G = core_.config().num_v_heads;
    const int64_t b = qkv_width() + 2 * core_.config().head_v;
    return {.qk_RX = projected_RX.columns(0, qk),
            .v_RX = projected_RX.columns(qk, qkv_width()),
            .a_RX = decay_RX,
            .b_RG = projected_RX.columns(b, b + G),
            .z_RX = gate_RX};
  }

  DeltaCore core_;
  ParameterView in_proj_, f_proj_, g_proj_, g_bias_, o_proj_;
  Tensor projected_RX_, decay_RX_, gate_RX_, mixed_RX_;
};

}  // namespace

std::unique_ptr<Mixer> make_kimi_delta_attention(ParameterBuilder& builder,
                                                 const std::string& prefix,
                                                 const ModelConfig& config) {
  return std::make_unique<KimiDeltaAttention>(builder, prefix, config);
}

}  // namespace deltatrain::layers
