// A small model with given weights on a backend, run once with gradients, against tensors that
// another program made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "config/model_config.h"
#include "formats/safetensors.h"
#include "model/training_step.h"

namespace deltatrain::test {

std::vector<double> as_doubles(const formats::StoredTensor& stored);

// Reads a stored tensor into contiguous device memory of the same shape, as the dtype that is
// there. `where` and `name` are for errors.
void load_tensor(const Context& context, const formats::StoredTensor& stored, const Tensor& to,
                 const std::string& where, const std::string& name);

// ||a - b|| / ||b|| over the first elements of a that b has.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

// Rows of `num_tokens` ids each; labels are the next ids of the row, the last of a row has none.
struct SmallBatch {
  std::vector<int32_t> ids, labels, offsets;
  int64_t num_sequences = 0;

  static SmallBatch next_tokens(const formats::StoredTensor& ids_BT);
  BatchShape shape() const;
  int64_t num_valid() const;
};

class SmallModel {
 public:
  // The reference backend computes in f64, the others in f32.
  SmallModel(DeviceKind kind, const ModelConfig& config, const BatchShape& shape,
             TrainingStep::Purpose purpose);

  TrainingStep& step() { return *step_; }
  const Context& context() const { return context_; }

  // Reads every parameter by its name from what `find` gives for it.
  template <typename Find>
  void load(Find&& find) {
    for (const auto& info : step_->parameters().infos()) {
      load_tensor(context_, find(info.name), step_->parameters().master(info), "golden", info.name);
    }
    step_->parameters().refresh_compute(context_);
  }

  TrainingStep::Trace trace(const SmallBatch& batch);
  std::vector<double> gradient(const layers::ParameterInfo& info);

 private:
  std::unique_ptr<backend::Backend> backend_, plan_;
  Context context_;
  std::unique_ptr<TrainingStep> step_;
};

}  // namespace deltatrain::test
