#include "model/model.h"

#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "ops/embedding.h"
#include "ops/rms_norm.h"

namespace deltatrain {

using layers::Init;
using layers::Pass;
using layers::Storage;

struct Model::Block {
  layers::ParameterView attn_norm, mlp_norm;
  std::unique_ptr<layers::Mixer> mixer;
  std::unique_ptr<layers::Mlp> mlp;
  int64_t matrices_begin = 0, matrices_end = 0;  // elements of the matrices that are the block's
  // Saved by forward: the stream before the mixer and before the MLP, and their normed forms.
  Tensor mixer_stream_RD, mixer_inv_rms_R, mixer_input_RD;
  Tensor mlp_stream_RD, mlp_inv_rms_R, mlp_input_RD;
};

namespace {
layers::ParameterInfo norm_info(const std::string& name, int64_t size) {
  return {
      .name = name, .checkpoint_shape = {size}, .init = Init::kOne, .storage = Storage::kMaster};
}
}  // namespace

Model::Model(const ModelConfig& config) : config_(config) {
  if (!config.use_short_conv) {
    throw UnsupportedError(
        error_text("model", "use_short_conv", "true", "false: mixers are built with convolutions"));
  }
  const int64_t D = config.hidden_size;
  embedding_ =
      builder_.add({.name = "model.embeddings.weight", .checkpoint_shape = {config.vocab_size, D}});
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    Block block;
    block.matrices_begin = builder_.num_matrix_elements();
    block.attn_norm = builder_.add(norm_info(prefix + "attn_norm.weight", D));
    if (config.is_mla_layer(i)) {
      block.mixer = layers::make_multi_head_latent_attention(builder_, prefix + "attn.", config);
    } else if (config.family == ModelFamily::kKda) {
      block.mixer = layers::make_kimi_delta_attention(builder_, prefix + "attn.", config);
    } else {
      block.mixer = layers::make_gated_delta_net(builder_, prefix + "attn.", config);
    }
    block.mlp_norm = builder_.add(norm_info(prefix + "mlp_norm.weight", D));
    block.mlp = std::make_unique<layers::Mlp>(builder_, prefix + "mlp.", config);
    block.matrices_end = builder_.num_matrix_elements();
    blocks_.push_back(std::move(block));
  }
  final_norm_ = builder_.add(norm_info("model.norm.weight", D));
  head_ = embedding_;
  if (!config.tie_word_embeddings) {
    head_ = builder_.add({.name = "lm_head.weight", .checkpoint_shape = {config.vocab_size, D}});
  }
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

void Model::forward(const Pass& pass, const Tensor& ids_R, const Tensor& hidden_RD) {
  const Context& context = pass.context;
  const int64_t R = pass.num_rows(), D = config_.hidden_size;
  const DType statistics = context.statistics_dtype();
  DELTATRAIN_CHECK(pass.states == nullptr || pass.states->size() == blocks_.size(),
                   "one state per block");

  const Arena::ScratchScope scope(*context.arena);
  streams_.clear();
  const auto needs = [&pass](int64_t end) {
    if (pass.listener != nullptr) pass.listener->needs(end);
  };
  Tensor stream_RD = pass.save_stream({R, D});
  needs(embedding_.shape.num_elements());
  ops::embedding_forward(context,
                         {.ids_R = ids_R, .weight_ND = pass.weight(embedding_), .y_RD = stream_RD});
  streams_.push_back(stream_RD);

  const Tensor branch_RD = pass.scratch_activation({R, D});  // output of the last mixer or MLP
  bool pending = false;  // branch still to be added to the stream
  // s := s + branch, y := norm(s), with s in place when nothing has to be kept.
  const auto add_and_norm = [&](const layers::ParameterView& weight, const Tensor& y_RD,
                                const Tensor& inv_rms_R) {
    ops::RmsNormForward norm{.x_RD = stream_RD,
                             .weight_D = pass.weight(weight),
                             .y_RD = y_RD,
                             .inv_rms_R = inv_rms_R,
                             .eps = config_.norm_eps};
    if (pending) {
      norm.x_RD = branch_RD;
      norm.residual_RD = stream_RD;
      if (pass.mode == Pass::Mode::kTrain) stream_RD = pass.save_stream({R, D});
      norm.sum_RD = stream_RD;
    }
    ops::rms_norm_forward(context, norm);
    pending = true;
  };

  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& block = blocks_[i];
    needs(block.matrices_end);
    const layers::LayerState* state = pass.states == nullptr ? nullptr : &(*pass.states)[i];
    const Arena::ScratchScope block_scope(*context.arena);
    block.mixer_inv_rms_R = pass.save(statistics, {R});
    block.mixer_input_RD = pass.save_activation({R, D});
    add_and_norm(block.attn_norm, block.mixer_input_RD, block.mixer_inv_rms_R);
    block.mixer_stream_RD = stream_RD;
    if (i > 0) streams_.push_back(stream_RD);
    block.mixer->forward(pass, block.mixer_input_RD, branch_RD, state);

    block.mlp_inv_rms_R = pass.save(statistics, {R});
    block.mlp_input_RD = pass.save_activation({R, D});
    add_and_norm(block.mlp_norm, block.mlp_input_RD, block.mlp_inv_rms_R);
    block.mlp_stream_RD = stream_RD;
    block.mlp->forward(pass, block.mlp_input_RD, branch_RD);
  }
  final_inv_rms_R_ = pass.save(statistics, {R});
  add_and_norm(final_norm_, hidden_RD, final_inv_rms_R_);
  needs(builder_.num_matrix_elements());  // the head
  streams_.push_back(stream_RD);
}

void Model::step(const Pass& pass, const Tensor& ids_R, const Tensor& logits_RN,
                 const Tensor& chosen_R) {
  const Context& context = pass.context;
  const int64_t R = pass.num_rows(), D = config_.hidden_size;
  DELTATRAIN_CHECK(pass.is_step() && pass.states->size() == blocks_.size(), "a step with states");
  const Arena::ScratchScope scope(*context.arena);
  // The stream changes place at every sum: others still read it while it is made.
  Tensor stream_RD = pass.scratch_activation({R, D});
  Tensor next_stream_RD = pass.scratch_activation({R, D});
  const Tensor branch_RD = pass.scratch_activation({R, D});  // output of the last mixer or MLP
  ops::embedding_forward(context,
                         {.ids_R = ids_R, .weight_ND = pass.weight(embedding_), .y_RD = stream_RD});
  bool pending = false;  // branch still to be added to the stream
  const auto input = [&](const layers::ParameterView& norm) {
    layers::StepInput in{.x_RD = stream_RD, .norm = norm, .eps = config_.norm_eps};
    if (pending) {
      in.x_RD = branch_RD;
      in.residual_RD = stream_RD;
      in.sum_RD = next_stream_RD;
      std::swap(stream_RD, next_stream_RD);
    }
    pending = true;
    return in;
  };
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Arena::ScratchScope block_scope(*context.arena);
    const Block& block = blocks_[i];
    block.mixer->step(pass, input(block.attn_norm), branch_RD, (*pass.states)[i]);
    block.mlp->step(pass, input(block.mlp_norm), branch_RD);
  }
  ops::NormLinear head = input(final_norm_).product(pass, head_, logits_RN);
  head.index_R = chosen_R;
  ops::norm_linear(context, head);
}

void Model::backward(const Pass& pass, const Tensor& ids_R, const Tensor& d_hidden_RD) {
  const Context& context = pass.context;
  const int64_t R = pass.num_rows(), D = config_.hidden_size;
  DELTATRAIN_CHECK(pass.mode == Pass::Mode::kTrain, "backward after a forward that saved nothing");
  const Arena::ScratchScope scope(*context.arena);
  // The gradient of the stream, and what the products of a branch take of it: the same, or rounded.
  const Tensor d_stream_RD = context.arena->scratch(context.stream_dtype(), {R, D});
  const bool rounds = context.stream_dtype() != context.activation_dtype;
  const Tensor d_branch_RD = rounds ? pass.scratch_activation({R, D}) : d_stream_RD;
  const Tensor d_input_RD = d_hidden_RD;  // gradients of normed inputs take turns here

  const auto norm_backward = [&](const layers::ParameterView& weight, const Tensor& stream_RD,
                                 const Tensor& inv_rms_R, const Tensor& flowing_RD) {
    ops::rms_norm_backward(context, {.dy_RD = d_input_RD,
                                     .sum_RD = stream_RD,
                                     .weight_D = pass.weight(weight),
                                     .inv_rms_R = inv_rms_R,
                                     .dsum_RD = flowing_RD,
                                     .dx_RD = d_stream_RD,
                                     .dweight_D = pass.gradient(weight),
                                     .dx_rounded_RD = rounds ? d_branch_RD : Tensor()});
  };
  const auto finished = [&pass](int64_t begin) {
    if (pass.listener != nullptr) pass.listener->finished(begin);
  };
  // A head of its own has its gradient since the loss.
  if (!config_.tie_word_embeddings) finished(head_.offset);
  norm_backward(final_norm_, streams_.back(), final_inv_rms_R_, Tensor());
  for (size_t i = blocks_.size(); i-- > 0;) {
    Block& block = blocks_[i];
    block.mlp->backward(pass, d_branch_RD, block.mlp_input_RD, d_input_RD);
    norm_backward(block.mlp_norm, block.mlp_stream_RD, block.mlp_inv_rms_R, d_stream_RD);
    block.mixer->backward(pass, d_branch_RD, block.mixer_input_RD, d_input_RD);
    norm_backward(block.attn_norm, block.mixer_stream_RD, block.mixer_inv_rms_R, d_stream_RD);
    finished(block.matrices_begin);
  }
  ops::embedding_backward(
      context, {.ids_R = ids_R, .dy_RD = d_stream_RD, .dweight_ND = pass.gradient(embedding_)});
  finished(0);
}

std::vector<layers::Mixer::StateShape> Model::state_shapes(int64_t num_sequences,
                                                           int64_t max_length) const {
  std::vector<layers::Mixer::StateShape> shapes;
  for (const Block& block : blocks_)
    shapes.push_back(block.mixer->state_shape(num_sequences, max_length));
  return shapes;
}

}  // namespace deltatrain
