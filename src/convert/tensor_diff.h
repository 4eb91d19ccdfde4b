// Comparing two sets of named tensors, value by value: weights, gradients or activations.
//
// Per tensor the error is ||a - b||_2 / ||b||_2 in double, b being the reference. Integer tensors
// have error 0 when all elements are equal and infinity otherwise, and so does a tensor with a
// value in it that isn't finite, unless the other has the same bits there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/reporter.h"
#include "tensor/shape.h"

namespace deltatrain::convert {

struct TensorDifference {
  std::string name;
  DType dtype_a = DType::kF32;
  DType dtype_b = DType::kF32;
  Shape shape;  // of b
  double relative_error = 0;
  double max_abs = 0;
  int64_t num_different = 0;  // elements whose values differ
};

struct DiffReport {
  double tolerance = 0;
  std::vector<TensorDifference> tensors;  // in both, by name
  std::vector<std::string> missing;       // in b only
  std::vector<std::string> extra;         // in a only
  std::vector<std::string>
      mismatched;  // "name: expected [2, 3], got [3, 2]", or integers against floats
  std::optional<std::string> largest;  // the tensor of the largest error
  // The least block with a tensor past the tolerance, and the first such tensor; -1 for the
  // embedding. hidden.N of a dump counts as block N - 1, whose output it is. Absent when none
  // differs.
  std::optional<int64_t> first_layer;
  std::optional<std::string> first_tensor;

  bool passed() const;
};

// `a` and `b`: a .safetensors file, a Hugging Face folder or a native checkpoint. Reads them once,
// in blocks.
DiffReport diff_tensors(const std::filesystem::path& a, const std::filesystem::path& b,
                        double tolerance, Reporter& reporter);

// The report as a table with a summary, and as JSON.
std::string to_text(const DiffReport& report);
std::string to_json(const DiffReport& report);

}  // namespace deltatrain::convert
