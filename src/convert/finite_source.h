// Weights that are checked while they are read: a conversion carries no NaN and no infinity on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "convert/weight_source.h"

namespace deltatrain::convert {

// Passes everything on to `source`, which outlives it. read() of any tensor, and read_state() of
// masters, throw CheckFailedError, naming the tensor and its first such element, for a number that
// is not finite or would not be in the dtype that `targets` gives the tensor. Moments are not
// checked.
class FiniteSource : public WeightSource {
 public:
  FiniteSource(const WeightSource& source, const std::vector<formats::TensorSpec>& targets);

  std::string describe() const override { return source_.describe(); }
  int64_t step() const override { return source_.step(); }
  const std::filesystem::path& folder() const override { return source_.folder(); }
  const ModelConfig& config() const override { return source_.config(); }
  const std::vector<formats::TensorSpec>& tensors() const override { return source_.tensors(); }
  void read(const std::string& name, int64_t begin, int64_t count, void* out) const override;
  void release(const std::string& name) const override { source_.release(name); }
  checkpoint::TensorDifferences differences() const override { return source_.differences(); }
  bool has_optimizer() const override { return source_.has_optimizer(); }
  void read_state(StatePart part, const std::string& name, int64_t begin, int64_t count,
                  float* out) const override;
  TrainingCounters counters() const override { return source_.counters(); }
  std::vector<std::string> notes() const override { return source_.notes(); }

 private:
  void check(const std::string& name, DType stored, int64_t begin, int64_t count,
             const void* values) const;

  struct DTypes {
    DType stored, target;
  };
  const WeightSource& source_;
  std::map<std::string, DTypes> dtypes_;
};

}  // namespace deltatrain::convert
