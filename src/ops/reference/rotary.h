// Plain loops of ops/rotary.h.
#pragma once

#include <cmath>
#include <complex>

#include "ops/rotary.h"  // RotaryDirection

namespace deltatrain::ops::reference {

template <class T>
void rotary(View<const T> x_RHX, const Sequences& sequences, View<const int32_t> start_positions_S,
            double theta, RotaryDirection direction, View<T> y_RHX) {
  const int64_t H = x_RHX.size(1), half = x_RHX.size(2) / 2;
  for (int64_t s = 0; s < sequences.num(); ++s) {
    const int64_t start = start_positions_S.defined() ? start_positions_S(s) : 0;
    for (int64_t r = sequences.begin(s); r < sequences.end(s); ++r) {
      const auto position = static_cast<double>(start + r - sequences.begin(s));
      for (int64_t i = 0; i < half; ++i) {
        const double frequency =
            std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
        const double angle =
            direction == RotaryDirection::kForward ? position * frequency : -position * frequency;
        const T cosine = T(std::cos(angle));
        const T sine = T(std::sin(angle));
        for (int64_t h = 0; h < H; ++h) {
          const T first = x_RHX(r, h, i);
          const T second = x_RHX(r, h, i + half);
          y_RHX(r, h, i) = first * cosine - second * sine;
          y_RHX(r, h, i + half) = second * cosine + first * sine;
        }
      }
    }
  }
}

}  // namespace deltatrain::ops::reference
