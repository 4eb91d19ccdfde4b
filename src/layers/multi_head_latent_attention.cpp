// Multi-head latent attention: low-rank queries and keys/values with norms on the ranks, one rotary
// key for all heads.
//
//   [q0 | kv0 | kr] = x W_in^T     q = norm(q0) W_q^T     [k_nope | v] per head = norm(kv0) W_kv^T
//   q = [q_nope | rotary(q_rope)]  k = [k_nope | rotary(kr)]  out = attention(q, k, v) W_o^T
//
// Without q_lora_rank, q = x W_q^T directly. With double_norms, norm(x) = norm_2(norm_1(x)), each
// with weights of its own: Megatron under Transformer Engine has the second one fused into the
// product behind it. Source: arXiv:2405.04434; names as FLA's MultiheadLatentAttention.

#include <cmath>

#include "layers/mixer.h"
#include "ops/causal_attention.h"
#include "ops/linear.h"
#include "ops/mla_key.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"

namespace deltatrain::layers {

namespace {

class MultiHeadLatentAttention final : public Mixer {
 public:
  MultiHeadLatentAttention(ParameterBuilder& builder, const std::string& prefix,
                           const ModelConfig& model)
      : config_(*model.attn) {
    const int64_t D = model.hidden_size, n = config_.num_heads;
    const auto matrix = [&](const char* name, int64_t rows, int64_t columns) {
      return ParameterInfo{.name = prefix + name, .checkpoint_shape = {rows, columns}};
    };
    const auto norm = [&](const char* name, int64_t size) {
      return ParameterInfo{.name = prefix + name,
                           .checkpoint_shape = {size},
                           .init = Init::kOne,
                           .storage = Storage::kMaster};
    };
    const int64_t q_width = n * config_.qk_head_dim();
    q_rank_ = config_.q_lora_rank.value_or(0);
    std::vector<ParameterInfo> group;
    if (q_rank_ > 0) group.push_back(matrix("q_proj.0.weight", q_rank_, D));
    group.push_back(matrix("kv_proj.0.weight", config_.kv_lora_rank, D));
    group.push_back(matrix("k_rope.weight", config_.qk_rope_head_dim, D));
    in_proj_ = builder.add_group(group);
    const auto norms = [&](const char* first, const char* second, int64_t size) {
      RankNorm rank{.first = builder.add(norm(first, size))};
      if (config_.double_norms) rank.second = builder.add(norm(second, size));
      return rank;
    };
    if (q_rank_ > 0) {
      q_norm_ = norms("q_proj.1.weight", "q_second_norm.weight", q_rank_);
      q_proj_ = builder.add(matrix("q_proj.2.weight", q_width, q_rank_));
    } else {
      q_proj_ = builder.add(matrix("q_proj.weight", q_width, D));
    }
    kv_norm_ = norms("kv_proj.1.weight", "kv_second_norm.weight", config_.kv_lora_rank);
    kv_proj_ = builder.add(matrix("kv_proj.2.weight", n * kv_head_width(), config_.kv_lora_rank));
    o_proj_ = builder.add(matrix("o_proj.weight", D, n * config_.v_head_dim));
  }

  void forward(const Pass& pass, const Tensor& x_RD, const Tensor& y_RD,
               const LayerState* state) override {
    const int64_t R = pass.num_rows(), n = config_.num_heads;
    const Context& context = pass.context;
    projected_RX_ = pass.save_activation({R, in_proj_.shape[0]});
    ops::linear_forward(context,
                        {.x_RD = x_RD, .weight_XD = pass.weight(in_proj_), .y_RX = projected_RX_});

    q_RHK_ = pass.save_activation({R, n, config_.qk_head_dim()});
    const Tensor q_flat_RX = q_RHK_.reshape({R, n * config_.qk_head_dim()});
    if (q_rank_ > 0) {
      apply(pass, q0(projected_RX_), q_norm_);
      ops::linear_forward(
          context,
          {.x_RD = q_norm_.output_RX, .weight_XD = pass.weight(q_proj_), .y_RX = q_flat_RX});
    } else {
      ops::linear_forward(context,
                          {.x_RD = x_RD, .weight_XD = pass.weight(q_proj_), .y_RX = q_flat_RX});
    }
    rotate(pass, q_rope(q_RHK_), ops::RotaryDirection::kForward);

    apply(pass, kv0(projected_RX_), kv_norm_);
    kv_RX_ = pass.save_activation({R, n * kv_head_width()});
    k_RHK_ = pass.save_activation({R, n, config_.qk_head_dim()});
    o_RHV_ = pass.save_activation({R, n, config_.v_head_dim});
    ops::linear_forward(
        context, {.x_RD = kv_norm_.output_RX, .weight_XD = pass.weight(kv_proj_), .y_RX = kv_RX_});
    const Tensor k_rope_R1X = k_rope(projected_RX_).split_last(1, config_.qk_rope_head_dim);
    rotate(pass, k_rope_R1X, ops::RotaryDirection::kForward);
    ops::mla_key_forward(
        context,
        {.k_nope_RHX = k_nope(kv_RX_), .k_rope_RX = k_rope(projected_RX_), .k_RHK = k_RHK_});

    ops::CausalAttentionForward attention{.q_RHK = q_RHK_,
                                          .k_RHK = k_RHK_,
                                          .v_RHV = v(kv_RX_),
                                          .sequences = pass.sequences,
                                          .o_RHV = o_RHV_,
                                          .scale = scale()};
    if (pass.mode == Pass::Mode::kTrain)
      attention.lse_RH = lse_RH_ = pass.save(context.statistics_dtype(), {R, n});
    if (state != nullptr) {
      attention.k_cache_SXHK = state->k_cache_SXHK;
      attention.v_cache_SXHV = state->v_cache_SXHV;
      attention.cache_lengths_S = pass.lengths_S;
    }
    ops::causal_attention_forward(context, attention);
    ops::linear_forward(context, {.x_RD = o_RHV_.reshape({R, n * config_.v_head_dim}),
                                  .weight_XD = pass.weight(o_proj_),
                                  .y_RX = y_RD});
  }

  void backward(const Pass& pass, const Tensor& dy_RD, const Tensor& x_RD,
                const Tensor& dx_RD) override {
    const int64_t R = pass.num_rows(), n = config_.num_heads;
    const Context& context = pass.context;
    const Arena::ScratchScope scope(*context.arena);
    const Tensor do_RHV = pass.scratch_activation({R, n, config_.v_head_dim});
    const Tensor dq_RHK = pass.scratch_activation({R, n, config_.qk_head_dim()});
    const Tensor dk_RHK = pass.scratch_activation({R, n, config_.qk_head_dim()});
    const Tensor dkv_RX = pass.scratch_activation({R, n * kv_head_width()});
    const Tensor d_projected_RX = pass.scratch_activation({R, in_proj_.shape[0]});

    ops::linear_backward(context, {.dy_RX = dy_RD,
                                   .x_RD = o_RHV_.reshape({R, n * config_.v_head_dim}),
                                   .weight_XD = pass.weight(o_proj_),
                                   .dx_RD = do_RHV.reshape({R, n * config_.v_head_dim}),
                                   .dweight_XD = pass.gradient(o_proj_)});
    ops::causal_attention_backward(context, {.do_RHV = do_RHV,
                                             .q_RHK = q_RHK_,
                                             .k_RHK = k_RHK_,
                                             .v_RHV = v(kv_RX_),
                                             .o_RHV = o_RHV_,
                                             .lse_RH = lse_RH_,
                                             .sequences = pass.sequences,
                                             .dq_RHK = dq_RHK,
                                             .dk_RHK = dk_RHK,
                                             .dv_RHV = v(dkv_RX),
                                             .scale = scale()});

    ops::mla_key_backward(
        context,
        {.dk_RHK = dk_RHK, .dk_nope_RHX = k_nope(dkv_RX), .dk_rope_RX = k_rope(d_projected_RX)});
    const Tensor dk_rope_R1X = k_rope(d_projected_RX).split_last(1, config_.qk_rope_head_dim);
    rotate(pass, dk_rope_R1X, ops::RotaryDirection::kBackward);
    {
      const Arena::ScratchScope inner(*context.arena);
      const Tensor d_normed_kv_RX = pass.scratch_activation({R, config_.kv_lora_rank});
      ops::linear_backward(context, {.dy_RX = dkv_RX,
                                     .x_RD = kv_norm_.output_RX,
                                     .weight_XD = pass.weight(kv_proj_),
                                     .dx_RD = d_normed_kv_RX,
                                     .dweight_XD = pass.gradient(kv_proj_)});
      apply_backward(pass, kv_norm_, d_normed_kv_RX, kv0(projected_RX_), kv0(d_projected_RX));
    }
    rotate(pass, q_rope(dq_RHK), ops::RotaryDirection::kBackward);
    const Tensor dq_flat_RX = dq_RHK.reshape({R, n * config_.qk_head_dim()});
    ops::GradMode dx_mode = ops::GradMode::kOverwrite;
    if (q_rank_ > 0) {
      const Tensor d_normed_q_RX = pass.scratch_activation({R, q_rank_});
      ops::linear_backward(context, {.dy_RX = dq_flat_RX,
                                     .x_RD = q_norm_.output_RX,
                                     .weight_XD = pass.weight(q_proj_),
                                     .dx_RD = d_normed_q_RX,
                                     .dweight_XD = pass.gradient(q_proj_)});
      apply_backward(pass, q_norm_, d_normed_q_RX, q0(projected_RX_), q0(d_projected_RX));
    } else {
      ops::linear_backward(context, {.dy_RX = dq_flat_RX,
                                     .x_RD = x_RD,
                                     .weight_XD = pass.weight(q_proj_),
                                     .dx_RD = dx_RD,
                                     .dweight_XD = pass.gradient(q_proj_)});
      dx_mode = ops::GradMode::kAccumulate;
    }
    ops::linear_backward(context, {.dy_RX = d_projected_RX,
                                   .x_RD = x_RD,
                                   .weight_XD = pass.weight(in_proj_),
                                   .dx_RD = dx_RD,
                                   .dweight_XD = pass.gradient(in_proj_),
                                   .dx_mode = dx_mode});
  }

  StateShape state_shape(int64_t num_sequences, int64_t max_length) const override {
    return {.recurrent = {},
            .qk_history = {},
            .v_history = {},
            .k_cache = {num_sequences, max_length, config_.num_heads, config_.qk_head_dim()},
            .v_cache = {num_sequences, max_length, config_.num_heads, config_.v_head_dim}};
  }

 private:
  // The norm on a rank, or two in a row, and what forward keeps of it.
  struct RankNorm {
    ParameterView first;
    ParameterView second;     // undefined without double_norms
    Tensor between_RX;        // saved  output of the first of two
    Tensor output_RX;         // saved
    Tensor first_inv_rms_R;   // saved
    Tensor second_inv_rms_R;  // saved  with double_norms
  };

  void apply(const Pass& pass, const Tensor& x_RX, RankNorm& norm) const {
    const Shape shape = {pass.num_rows(), x_RX.size(1)};
    const auto one = [&](const Tensor& from, const ParameterView& weight, Tensor& to,
                         Tensor& inv_rms_R) {
      inv_rms_R = pass.save(pass.context.statistics_dtype(), {pass.num_rows()});
      to = pass.save_activation(shape);
      ops::rms_norm_forward(pass.context, {.x_RD = from,
                                           .weight_D = pass.weight(weight),
                                           .y_RD = to,
                                           .inv_rms_R = inv_rms_R,
                                           .eps = config_.norm_eps});
    };
    if (!norm.second.defined()) {
      one(x_RX, norm.first, norm.output_RX, norm.first_inv_rms_R);
      return;
    }
    one(x_RX, norm.first, norm.between_RX, norm.first_inv_rms_R);
    one(norm.between_RX, norm.second, norm.output_RX, norm.second_inv_rms_R);
  }

  // x as apply() got it; dx overwritten.
  static void apply_backward(const Pass& pass, const RankNorm& norm, const Tensor& dy_RX,
                             const Tensor& x_RX, const Tensor& dx_RX) {
    const auto one = [&](const Tensor& dy, const Tensor& x, const ParameterView& weight,
                         const Tensor& inv_rms_R, const Tensor& dx) {
      ops::rms_norm_backward(pass.context, {.dy_RD = dy,
                                            .sum_RD = x,
                                            .weight_D = pass.weight(weight),
                                            .inv_rms_R = inv_rms_R,
                                            .dx_RD = dx,
                                            .dweight_D = pass.gradient(weight)});
    };
    if (!norm.second.defined()) {
      one(dy_RX, x_RX, norm.first, norm.first_inv_rms_R, dx_RX);
      return;
    }
    const Tensor d_between_RX = pass.scratch_activation({pass.num_rows(), x_RX.size(1)});
    one(dy_RX, norm.between_RX, norm.second, norm.second_inv_rms_R, d_between_RX);
    one(d_between_RX, x_RX, norm.first, norm.first_inv_rms_R, dx_RX);
  }

  int64_t kv_head_width() const { return config_.qk_nope_head_dim + config_.v_head_dim; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(config_.qk_head_dim())); }

  Tensor q0(const Tensor& projected_RX) const { return projected_RX.columns(0, q_rank_); }
  Tensor kv0(const Tensor& projected_RX) const {
    return projected_RX.columns(q_rank_, q_rank_ + config_.kv_lora_rank);
  }
  Tensor k_rope(const Tensor& projected_RX) const {
    const int64_t at = q_rank_ + config_.kv_lora_rank;
    return projected_RX.columns(at, at + config_.qk_rope_head_dim);
  }
  Tensor q_rope(const Tensor& q_RHK) const {
    return q_RHK.columns(config_.qk_nope_head_dim, config_.qk_head_dim());
  }
  Tensor k_nope(const Tensor& kv_RX) const {
    return kv_RX.split_last(config_.num_heads, kv_head_width())
        .columns(0, config_.qk_nope_head_dim);
  }
  Tensor v(const Tensor& kv_RX) const {
    return kv_RX.split_last(config_.num_heads, kv_head_width())
        .columns(config_.qk_nope_head_dim, kv_head_width());
  }

  // In place.
  void rotate(const Pass& pass, const Tensor& x_RHX, ops::RotaryDirection direction) const {
    ops::rotary(pass.context,
                {.x_RHX = x_RHX,
                 .y_RHX = x_RHX,
                 .sequences = pass.sequences,
                 .start_positions_S = pass.states == nullptr ? Tensor() : pass.lengths_S,
                 .theta = config_.rope_theta,
                 .direction = direction});
  }

  MlaConfig config_;
  int64_t q_rank_ = 0;  // 0: one query projection
  ParameterView in_proj_, q_proj_, kv_proj_, o_proj_;
  RankNorm q_norm_, kv_norm_;
  Tensor projected_RX_, q_RHK_, kv_RX_, k_RHK_, o_RHV_, lse_RH_;
};

}  // namespace

std::unique_ptr<Mixer> make_multi_head_latent_attention(ParameterBuilder& builder,
                                                        const std::string& prefix,
                                                        const ModelConfig& config) {
  return std::make_unique<MultiHeadLatentAttention>(builder, prefix, config);
}

}  // namespace deltatrain::layers
