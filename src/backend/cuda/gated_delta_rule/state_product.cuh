// S . dS of a chunk where a sequence begins or ends.
#pragma once

#include "backend/cuda/gated_delta_rule/tiles.cuh"

namespace deltatrain::backend::cuda::delta {

// Whether S . dS of a chunk needs the ends of a sequence in f32: where a sequence is short, one
// product of two rounded states may be all that dg consists of.
__device__ __forceinline__ bool has_exact_state(const DeltaArguments& args, ChunkPlace place) {
  return (place.is_first && args.initial_state != nullptr) ||
         (place.is_last && args.d_final_state != nullptr);
}

// S_kv dS_kv of the states entering and leaving a chunk, in f32 where a sequence begins or ends.
template <int K, int V>
struct StateProduct {
  const Bf16* s_state;  // Tile<K> [V, K]
  const Bf16* s_d_state;
  const float* state = nullptr;  // [K, V], null where rounded is all there is
  const float* d_state = nullptr;

  __device__ __forceinline__ StateProduct(const DeltaArguments& args, ChunkPlace place,
                                          int value_head, const Bf16* rounded_state,
                                          const Bf16* rounded_d_state)
      : s_state(rounded_state), s_d_state(rounded_d_state) {
    const int64_t at = (int64_t{place.sequence} * args.G + value_head) * K * V;
    if (place.is_first && args.initial_state != nullptr) state = args.initial_state + at;
    if (place.is_last && args.d_final_state != nullptr) d_state = args.d_final_state + at;
  }
  __device__ __forceinline__ float operator()(int k, int v) const {
    const int at = Tile<K>::at(v, k);
    const float x = state != nullptr ? state[k * V + v] : to_float(s_state[at]);
    const float y = d_state != nullptr ? d_state[k * V + v] : to_float(s_d_state[at]);
    return x * y;
  }
};

}  // namespace deltatrain::backend::cuda::delta
