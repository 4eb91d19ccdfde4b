// Sizes of heads as constants: kernels are compiled for each.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace deltatrain::backend::cuda::delta {

template <int K_, int V_>
struct HeadSize {
  static constexpr int K = K_;
  static constexpr int V = V_;
};

template <class... Sizes>
struct HeadSizes {};

// Calls function with the HeadSize of the list that is K x V. Other sizes have been refused before.
template <class First, class... Rest, class Function>
auto with_head_size(HeadSizes<First, Rest...>, int64_t K, int64_t V, Function function) {
  if (K == First::K && V == First::V) return function(First{});
  if constexpr (sizeof...(Rest) > 0) {
    return with_head_size(HeadSizes<Rest...>{}, K, V, function);
  } else {
    throw InternalError("gated_delta_rule: no kernel for heads of " + std::to_string(K) + " x " +
                        std::to_string(V));
  }
}

template <int K>
struct KeyWidth {
  static constexpr int value = K;
};

// Calls function with the KeyWidth of the list that is K.
template <int First, int... Rest, class Function>
auto with_key_width(int64_t K, Function function) {
  if (K == First) return function(KeyWidth<First>{});
  if constexpr (sizeof...(Rest) > 0) {
    return with_key_width<Rest...>(K, function);
  } else {
    throw InternalError("gated_delta_rule: no kernel for K = " + std::to_string(K));
  }
}

}  // namespace deltatrain::backend::cuda::delta
