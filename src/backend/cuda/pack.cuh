// Several neighbouring elements moved by one access of up to 16 bytes, and their values as f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace deltatrain::backend::cuda {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Two values as bf16 in one word, `low` at the lower address.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// N elements of T in registers. The address of a load or store is a multiple of kBytes, or of 16
// where kBytes is larger.
template <class T, int N>
struct Pack {
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * N;
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes % 16 == 0);
  uint32_t words[(kBytes + 3) / 4];

  __device__ __forceinline__ void unpack(float (&values)[N]) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = __uint_as_float(words[i]);
    } else if constexpr (N == 1) {
      values[0] = __uint_as_float(words[0] << 16);
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
      }
    }
  }

  __device__ __forceinline__ void pack(const float (&values)[N]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = __float_as_uint(values[i]);
    } else if constexpr (N == 1) {
      words[0] = pack_bf16(values[0], 0.0F) & 0xffffU;
    } else {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) words[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void set_zero() {
#pragma unroll
    for (uint32_t& word : words) word = 0;
  }
};

// How long a line is wanted: kStreaming is read or written once and leaves the caches first.
enum class Reuse { kNormal, kStreaming };

template <class T, int N, Reuse kReuse = Reuse::kNormal>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  Pack<T, N> pack;
  constexpr int kBytes = Pack<T, N>::kBytes;
  if constexpr (kBytes == 2) {
    const auto* p = reinterpret_cast<const unsigned short*>(from);
    pack.words[0] = kReuse == Reuse::kStreaming ? __ldcs(p) : *p;
  } else if constexpr (kBytes == 4) {
    const auto* p = reinterpret_cast<const unsigned int*>(from);
    pack.words[0] = kReuse == Reuse::kStreaming ? __ldcs(p) : *p;
  } else if constexpr (kBytes == 8) {
    const auto* p = reinterpret_cast<const uint2*>(from);
    const uint2 v = kReuse == Reuse::kStreaming ? __ldcs(p) : *p;
    pack.words[0] = v.x;
    pack.words[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const auto* p = reinterpret_cast<const uint4*>(from) + i;
      const uint4 v = kReuse == Reuse::kStreaming ? __ldcs(p) : *p;
      pack.words[4 * i] = v.x;
      pack.words[4 * i + 1] = v.y;
      pack.words[4 * i + 2] = v.z;
      pack.words[4 * i + 3] = v.w;
    }
  }
  return pack;
}

template <Reuse kReuse = Reuse::kNormal, class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  constexpr int kBytes = Pack<T, N>::kBytes;
  if constexpr (kBytes == 2) {
    auto* p = reinterpret_cast<unsigned short*>(to);
    const auto v = static_cast<unsigned short>(pack.words[0]);
    if constexpr (kReuse == Reuse::kStreaming) {
      __stcs(p, v);
    } else {
      *p = v;
    }
  } else if constexpr (kBytes == 4) {
    auto* p = reinterpret_cast<unsigned int*>(to);
    if constexpr (kReuse == Reuse::kStreaming) {
      __stcs(p, pack.words[0]);
    } else {
      *p = pack.words[0];
    }
  } else if constexpr (kBytes == 8) {
    auto* p = reinterpret_cast<uint2*>(to);
    const uint2 v = make_uint2(pack.words[0], pack.words[1]);
    if constexpr (kReuse == Reuse::kStreaming) {
      __stcs(p, v);
    } else {
      *p = v;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      auto* p = reinterpret_cast<uint4*>(to) + i;
      const uint4 v = make_uint4(pack.words[4 * i], pack.words[4 * i + 1], pack.words[4 * i + 2],
                                 pack.words[4 * i + 3]);
      if constexpr (kReuse == Reuse::kStreaming) {
        __stcs(p, v);
      } else {
        *p = v;
      }
    }
  }
}

template <class T, int N, Reuse kReuse = Reuse::kNormal>
__device__ __forceinline__ void load_values(const T* from, float (&values)[N]) {
  load_pack<T, N, kReuse>(from).unpack(values);
}

template <Reuse kReuse = Reuse::kNormal, class T, int N>
__device__ __forceinline__ void store_values(T* to, const float (&values)[N]) {
  Pack<T, N> pack;
  pack.pack(values);
  store_pack<kReuse>(to, pack);
}

}  // namespace deltatrain::backend::cuda
