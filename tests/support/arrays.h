// Host arrays for tests, and gradients by the complex step.
#pragma once

#include <complex>
#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace deltatrain::test {

using Complex = std::complex<double>;

template <class T>
struct ArrayOf {
  Shape shape;
  std::vector<T> values;

  ArrayOf() = default;
  explicit ArrayOf(const Shape& s, T fill = T(0))
      : shape(s), values(static_cast<size_t>(s.num_elements()), fill) {}
  View<T> view() { return View<T>(values.data(), shape); }
  View<const T> view() const { return View<const T>(values.data(), shape); }
};
using Array = ArrayOf<double>;

// Independent normal values, the same for the same arguments; mean 0 and deviation `scale`.
Array normal(const Shape& shape, uint64_t seed, double scale = 1);
// NaN everywhere: what must be written shows when it is not.
Array poisoned(const Shape& shape);

// ||got - want||_2 / ||want||_2; where `want` is zero, ||got||_2. NaN counts as infinite.
double relative_error(const Array& got, const Array& want);

// A function of several arrays, run in complex numbers: fills `outputs` from `inputs`.
using ComplexFunction = std::function<void(const std::vector<ArrayOf<Complex>>& inputs,
                                           std::vector<ArrayOf<Complex>>& outputs)>;

// Gradients of sum_i <weights_i, output_i> with respect to every input,
// each element by one evaluation with an imaginary part of 1e-100:
// exact to rounding, without a difference that could cancel.
std::vector<Array> complex_step(const ComplexFunction& function, const std::vector<Array>& inputs,
                                const std::vector<Array>& weights);

}  // namespace deltatrain::test
