// A loaded model and its answers to rows of tokens, a chunk of logits at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/model_folder.h"
#include "config/model_config.h"
#include "layers/parameters.h"
#include "model/model.h"

namespace deltatrain::verify {

class ModelRunner {
 public:
  // Contexts without arena; rows of at most max_length tokens.
  ModelRunner(const Context& context, const Context& planning_context,
              const std::filesystem::path& path, int64_t max_length);
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  const ModelConfig& config() const { return model_->config(); }
  const std::filesystem::path& folder() const { return folder_.folder(); }
  const layers::ParameterStore& parameters() const { return *parameters_; }

  // Runs the model over one row; logits() then speaks of it.
  void run(std::span<const int32_t> ids);
  // Logits after positions [begin, end) of the row, [end - begin, N]; at most kChunk rows.
  std::vector<float> logits(int64_t begin, int64_t end);

  static constexpr int64_t kChunk = 64;

 private:
  void forward(const Context& context, const layers::ParameterStore& parameters, int64_t num_rows);

  checkpoint::ModelFolder folder_;
  Context context_;
  Arena arena_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<layers::ParameterStore> parameters_;
  Buffer ids_, offsets_, hidden_, logits_;
  int64_t max_length_;
  int64_t num_rows_ = 0;
};

}  // namespace deltatrain::verify
