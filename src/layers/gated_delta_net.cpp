// Gated DeltaNet mixer: one scalar decay per value head, full-rank SiLU output gate, no biases.
//
//   [q' | k' | v' | z | b | a] = x W_in^T     y = delta_core(...)     out = y W_o^T
//
// Source: arXiv:2412.06464; names and shapes as FLA's GatedDeltaNet.

#include "layers/delta_core.h"
#include "layers/mixer.h"
#include "ops/linear.h"

namespace deltatrain::layers {

namespace {

DeltaCoreConfig gdn_core(const ModelConfig& config) {
  return {.num_heads = config.num_heads,
          .num_v_heads = config.num_v_heads,
          .head_k = config.head_dim,
          .head_v = config.head_v_dim(),
          .gate_k = 1,
          .conv_size = config.conv_size,
          .norm_eps = config.norm_eps,
          .output_gate = config.use_gate ? DeltaCoreConfig::OutputGate::kSilu
                                         : DeltaCoreConfig::OutputGate::kNone,
          .beta_scale = config.allow_neg_eigval ? 2.0 : 1.0};
}

class GatedDeltaNet final : public Mixer {
 public:
  GatedDeltaNet(ParameterBuilder& builder, const std::string& prefix, const ModelConfig& config)
      : core_(builder, prefix, gdn_core(config), Init::kLogUniformA, 0.0),
        use_gate_(config.use_gate) {
    const int64_t D = config.hidden_size;
    const auto matrix = [&](const char* name, int64_t rows) {
      return ParameterInfo{.name = prefix + name, .checkpoint_shape = {rows, D}};
    };
    std::vector<ParameterInfo> group = {matrix("q_proj.weight", config.key_dim()),
                                        matrix("k_proj.weight", config.key_dim()),
                                        matrix("v_proj.weight", config.value_dim())};
    if (use_gate_) group.push_back(matrix("g_proj.weight", config.value_dim()));
    group.push_back(matrix("b_proj.weight", config.num_v_heads));
    group.push_back(matrix("a_proj.weight", config.num_v_heads));
    in_proj_ = builder.add_group(group);
    o_proj_ = builder.add(
        {.name = prefix + "o_proj.weight", .checkpoint_shape = {D, config.value_dim()}});
  }

  void forward(const Pass& pass, const Tensor& x_RD, const Tensor& y_RD,
               const LayerState* state) override {
    const int64_t R = pass.num_rows();
    projected_RX_ = pass.save_activation({R, in_proj_.shape[0]});
    ops::linear_forward(pass.context,
                        {.x_RD = x_RD, .weight_XD = pass.weight(in_proj_), .y_RX = projected_RX_});
    mixed_RX_ = pass.save_activation({R, core_.config().v_width()});
    core_.forward(pass, parts(projected_RX_), mixed_RX_, state);
    ops::linear_forward(pass.context,
                        {.x_RD = mixed_RX_, .weight_XD = pass.weight(o_proj_), .y_RX = y_RD});
  }

  void step(const Pass& pass, const StepInput& in, const Tensor& y_RD,
            const LayerState& state) override {
    const int64_t R = pass.num_rows();
    const Tensor projected_RX = pass.scratch_activation({R, in_proj_.shape[0]});
    const Tensor mixed_RX = pass.scratch_activation({R, core_.config().v_width()});
    ops::norm_linear(pass.context, in.product(pass, in_proj_, projected_RX));
    core_.step(pass, parts(projected_RX), mixed_RX, state);
    ops::linear_forward(pass.context,
                        {.x_RD = mixed_RX, .weight_XD = pass.weight(o_proj_), .y_RX = y_RD});
  }

  void backward(const Pass& pass, const Tensor& dy_RD, const Tensor& x_RD,
                const Tensor& dx_RD) override {
    const int64_t R = pass.num_rows();
    const Arena::ScratchScope scope(*pass.context.arena);
    const Tensor d_projected_RX = pass.scratch_activation({R, in_proj_.shape[0]});
    const Tensor d_mixed_RX = pass.scratch_activation({R, core_.config().v_width()});
    ops::linear_backward(pass.context, {.dy_RX = dy_RD,
                                        .x_RD = mixed_RX_,
                                        .weight_XD = pass.weight(o_proj_),
                                        .dx_RD = d_mixed_RX,
                                        .dweight_XD = pass.gradient(o_proj_)});
    core_.backward(pass, d_mixed_RX, parts(projected_RX_), parts(d_projected_RX));
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
  DeltaCore::Inputs parts(const Tensor& projected_RX) const {
    const int64_t qk = core_.config().qk_width(), v = core_.config().v_width(),
                  G = core_.config().num_v_heads;
    DeltaCore::Inputs in;
    in.qk_RX = projected_RX.columns(0, qk);
    in.v_RX = projected_RX.columns(qk, qk + v);
    int64_t at = qk + v;
    if (use_gate_) {
      in.z_RX = projected_RX.columns(at, at + v);
      at += v;
    }
    in.b_RG = projected_RX.columns(at, at + G);
    in.a_RX = projected_RX.columns(at + G, at + 2 * G);
    return in;
  }

  DeltaCore core_;
  bool use_gate_;
  ParameterView in_proj_, o_proj_;
  Tensor projected_RX_, mixed_RX_;
};

}  // namespace

std::unique_ptr<Mixer> make_gated_delta_net(ParameterBuilder& builder, const std::string& prefix,
                                            const ModelConfig& config) {
  return std::make_unique<GatedDeltaNet>(builder, prefix, config);
}

}  // namespace deltatrain::layers
