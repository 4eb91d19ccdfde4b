#include "support/arrays.h"

#include <cmath>
#include <limits>

#include "base/random.h"

namespace deltatrain::test {

Array normal(const Shape& shape, uint64_t seed, double scale) {
  Array array(shape);
  const RandomStream stream(seed, "test array");
  for (size_t i = 0; i < array.values.size(); ++i) array.values[i] = scale * stream.normal(i);
  return array;
}

Array poisoned(const Shape& shape) {
  return Array(shape, std::numeric_limits<double>::quiet_NaN());
}

double relative_error(const Array& got, const Array& want) {
  if (got.values.size() != want.values.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < want.values.size(); ++i) {
    difference += (got.values[i] - want.values[i]) * (got.values[i] - want.values[i]);
    size += want.values[i] * want.values[i];
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  return std::sqrt(size > 0 ? difference / size : difference);
}

std::vector<Array> complex_step(const ComplexFunction& function, const std::vector<Array>& inputs,
                                const std::vector<Array>& weights) {
  constexpr double kStep = 1e-100;
  std::vector<ArrayOf<Complex>> z;
  for (const Array& input : inputs) {
    z.emplace_back(input.shape);
    for (size_t i = 0; i < input.values.size(); ++i) z.back().values[i] = input.values[i];
  }
  std::vector<ArrayOf<Complex>> outputs;
  for (const Array& weight : weights) outputs.emplace_back(weight.shape);
  std::vector<Array> gradients;
  for (size_t n = 0; n < inputs.size(); ++n) {
    Array gradient(inputs[n].shape);
    for (size_t i = 0; i < gradient.values.size(); ++i) {
      z[n].values[i] = {inputs[n].values[i], kStep};
      function(z, outputs);
      z[n].values[i] = inputs[n].values[i];
      double sum = 0;
      for (size_t o = 0; o < outputs.size(); ++o) {
        for (size_t e = 0; e < outputs[o].values.size(); ++e) {
          sum += weights[o].values[e] * (outputs[o].values[e].imag() / kStep);
        }
      }
      gradient.values[i] = sum;
    }
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

}  // namespace deltatrain::test
