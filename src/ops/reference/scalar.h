// Scalar functions of the reference loops, for real and complex arguments.
//
// The loops also run in complex numbers, where an imaginary part of 1e-100 carries a derivative
// (the complex step). Branches therefore look at real parts only.
#pragma once

#include <cmath>
#include <complex>

namespace deltatrain::ops::reference {

template <class T>
T real_part(T x) {
  return x;
}
template <class T>
T real_part(std::complex<T> x) {
  return x.real();
}

template <class T>
T log1p(T x) {
  return std::log1p(x);
}
template <class T>
std::complex<T> log1p(std::complex<T> x) {
  const T a = x.real();
  const T b = x.imag();
  return {std::log1p(a * (T(2) + a) + b * b) / T(2), std::atan2(b, T(1) + a)};
}

// log(1 + exp(x)), without overflow for large x and without loss for very negative x.
template <class T>
T softplus(T x) {
  return real_part(x) > 0 ? x + reference::log1p(std::exp(-x)) : reference::log1p(std::exp(x));
}

template <class T>
T sigmoid(T x) {
  if (real_part(x) >= 0) return T(1) / (T(1) + std::exp(-x));
  const T e = std::exp(x);
  return e / (T(1) + e);
}

// d/dx of x sigmoid(x).
template <class T>
T silu_slope(T x) {
  const T s = sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

}  // namespace deltatrain::ops::reference
