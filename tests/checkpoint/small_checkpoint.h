// A checkpoint of a few kilobytes whose values follow from its step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace deltatrain::test {

class SmallCheckpoint {
 public:
  explicit SmallCheckpoint(int64_t step);

  checkpoint::SaveReport save(const std::filesystem::path& folder,
                              checkpoint::SaveOptions options = {}) const;
  // Throws unless the checkpoint at `path` passes every check and holds exactly the values of its
  // step. Returns the step.
  static int64_t check(const std::filesystem::path& path);

  const std::vector<checkpoint::NamedTensor>& model() const { return model_; }
  const std::vector<checkpoint::NamedTensor>& optimizer() const { return optimizer_; }

 private:
  Tensor make(DType dtype, const Shape& shape);

  checkpoint::CheckpointState state_;
  std::vector<std::unique_ptr<std::vector<char>>> memory_;
  std::vector<checkpoint::NamedTensor> model_;
  std::vector<checkpoint::NamedTensor> optimizer_;
};

}  // namespace deltatrain::test
