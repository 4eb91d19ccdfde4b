// A language model: token embedding, blocks of a mixer and an MLP, final norm. The tied head
// belongs to loss/.
//
//   s = E[ids];   for each block:  s += mixer(norm(s));  s += mlp(norm(s));   hidden = norm(s)
//
// Additions into the stream s happen inside the norm that follows them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "layers/mixer.h"
#include "layers/mlp.h"
#include "layers/parameters.h"

namespace deltatrain {

class Model {
 public:
  // Declares all parameters; allocates nothing. The config has been validated.
  explicit Model(const ModelConfig& config);
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const { return config_; }
  const layers::ParameterBuilder& parameters() const { return builder_; }
  const layers::ParameterView& embedding() const { return embedding_; }
  const layers::ParameterView& head() const { return head_; }  // the embedding where tied

  // ids: i32 [R] in device memory; hidden: normed final states [R, D], overwritten. In kTrain mode,
  // what backward needs is taken from the arena's save end. The pass's listener hears of matrices
  // before they are read.
  void forward(const layers::Pass& pass, const Tensor& ids_R, const Tensor& hidden_RD);

  // A pass that is a step (one token per sequence, with states), the head included: logits [R, N] and, where defined,
  // the most likely token of each row, i32 [R], as ops::row_argmax. `chosen` may alias `ids`.
  void step(const layers::Pass& pass, const Tensor& ids_R, const Tensor& logits_RN,
            const Tensor& chosen_R);

  // d_hidden: gradient of forward's hidden; overwritten. Parameter gradients accumulate. The pass's
  // listener hears of gradients that are complete, from the end of the matrices to their begin; it
  // hears 0 when all are, those of other parameters included.
  void backward(const layers::Pass& pass, const Tensor& ids_R, const Tensor& d_hidden_RD);

  // The residual stream after the embedding (0) and after block i (i), in the context's stream_dtype, as kept by
  // forward in kTrain mode.
  const std::vector<Tensor>& streams() const { return streams_; }

  std::vector<layers::Mixer::StateShape> state_shapes(int64_t num_sequences,
                                                      int64_t max_length) const;

 private:
  struct Block;

  ModelConfig config_;
  layers::ParameterBuilder builder_;
  layers::ParameterView embedding_, head_, final_norm_;
  std::vector<Block> blocks_;
  Tensor final_inv_rms_R_;
  std::vector<Tensor> streams_;
};

}  // namespace deltatrain
