// What GDN and KDA share: convolution, normalisation, gates, the delta rule and the gated output
// norm, between the input projections and the output projection.
//
//   q, k = l2_norm(short_conv(q', k'))     v = short_conv(v')     g, beta = delta_gate(a, b)
//   o = gated_delta_rule(q, k, v, g, beta)     y = gated_rms_norm(o, z)
//
// Source: arXiv:2412.06464 (GDN), arXiv:2510.26692 (KDA).
#pragma once

#include "layers/mixer.h"
#include "ops/delta_gate.h"
#include "ops/gated_delta_rule.h"
#include "ops/gated_rms_norm.h"

namespace deltatrain::layers {

struct DeltaCoreConfig {
  int64_t num_heads = 0;    // H
  int64_t num_v_heads = 0;  // G
  int64_t head_k = 0;       // K
  int64_t head_v = 0;       // V
  int64_t gate_k = 1;       // 1 (GDN) or K (KDA)
  int64_t conv_size = 4;    // W
  double norm_eps = 1e-6;
  enum class OutputGate : uint8_t { kNone, kSilu, kSigmoid } output_gate = OutputGate::kSilu;
  ops::DecayForm decay = ops::DecayForm::kSoftplus;
  double lower_bound = 0;
  double beta_scale = 1;

  int64_t qk_width() const { return 2 * num_heads * head_k; }
  int64_t v_width() const { return num_v_heads * head_v; }
};

class DeltaCore {
 public:
  // Raw projections, all with strided rows, and their gradients in backward.
  struct Inputs {
    Tensor qk_RX;  // [R, 2 H K], q then k
    Tensor v_RX;   // [R, G V]
    Tensor a_RX;   // [R, G gate_k]
    Tensor b_RG;   // [R, G]
    Tensor z_RX;   // [R, G V], undefined without an output gate
  };

  // Declares conv (q|k|v), A_log, dt_bias and o_norm under `prefix`.
  DeltaCore(ParameterBuilder& builder, const std::string& prefix, const DeltaCoreConfig& config,
            Init a_init, double a_low);

  // y: [R, G V], overwritten.
  void forward(const Pass& pass, const Inputs& in, const Tensor& y_RX, const LayerState* state);
  // forward of a pass that is a step. With low-rank pairs a_RX and z_RX are undefined.
  struct LowRank {
    Tensor a_low_RP;
    ParameterView a_weight;
    Tensor z_low_RP;
    ParameterView z_weight, z_bias;
  };
  void step(const Pass& pass, const Inputs& in, const Tensor& y_RX, const LayerState& state) const {
    step(pass, in, y_RX, state, LowRank());
  }
  void step(const Pass& pass, const Inputs& in, const Tensor& y_RX, const LayerState& state,
            const LowRank& low_rank) const;
  // Overwrites all tensors of d_in.
  void backward(const Pass& pass, const Tensor& dy_RX, const Inputs& in, const Inputs& d_in);

  Mixer::StateShape state_shape(int64_t num_sequences) const;
  const DeltaCoreConfig& config() const { return config_; }

 private:
  DeltaCoreConfig config_;
  ParameterView qk_conv_, v_conv_, a_log_, dt_bias_, o_norm_;
  // Saved by forward.
  Tensor q_RHK_, k_RHK_, q_inv_norm_RH_, k_inv_norm_RH_, v_RX_, g_RGK_, beta_RG_, delta_saved_,
      o_RGV_, inv_rms_RG_;
};

}  // namespace deltatrain::layers
