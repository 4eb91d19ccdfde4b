// Vectors of kLanes f32, whatever the machine's registers hold.
#pragma once

#include <cstdint>
#include <utility>

namespace deltatrain::backend::cpu {

inline constexpr int64_t kLanes = 16;

#if defined(__AVX512F__)
inline constexpr int64_t kRegisterLanes = 16;
#elif defined(__AVX__)
inline constexpr int64_t kRegisterLanes = 8;
#else
inline constexpr int64_t kRegisterLanes = 4;
#endif
inline constexpr int64_t kRegisters = kLanes / kRegisterLanes;

typedef float Register __attribute__((vector_size(kRegisterLanes * sizeof(float))));
typedef float UnalignedRegister
    __attribute__((vector_size(kRegisterLanes * sizeof(float)), aligned(4), may_alias));

inline Register load_register(const float* p) {
  return *reinterpret_cast<const UnalignedRegister*>(p);
}
inline void store_register(float* p, Register x) { *reinterpret_cast<UnalignedRegister*>(p) = x; }

// An array, since GCC keeps a vector wider than a register in memory and arrays of them in registers.
struct Lanes {
  Register part[kRegisters];
};

inline Lanes load(const float* p) {
  Lanes x;
  for (int64_t i = 0; i < kRegisters; ++i) x.part[i] = load_register(p + i * kRegisterLanes);
  return x;
}
inline Lanes broadcast(float value) {
  Lanes x;
  for (int64_t i = 0; i < kRegisters; ++i) x.part[i] = value - Register{};
  return x;
}
inline void store(float* p, Lanes x) {
  for (int64_t i = 0; i < kRegisters; ++i) store_register(p + i * kRegisterLanes, x.part[i]);
}

inline Lanes operator+(Lanes x, Lanes y) {
  for (int64_t i = 0; i < kRegisters; ++i) x.part[i] += y.part[i];
  return x;
}
inline Lanes operator-(Lanes x, Lanes y) {
  for (int64_t i = 0; i < kRegisters; ++i) x.part[i] -= y.part[i];
  return x;
}
inline Lanes operator*(Lanes x, Lanes y) {
  for (int64_t i = 0; i < kRegisters; ++i) x.part[i] *= y.part[i];
  return x;
}
inline Lanes operator*(float x, Lanes y) {
  for (int64_t i = 0; i < kRegisters; ++i) y.part[i] *= x;
  return y;
}
inline Lanes& operator+=(Lanes& x, Lanes y) { return x = x + y; }
inline Lanes& operator-=(Lanes& x, Lanes y) { return x = x - y; }
inline Lanes& operator*=(Lanes& x, Lanes y) { return x = x * y; }

// The sum of all lanes in halves: lane l and lane l + 8, then l and l + 4, ...
template <int kWidth, int... kLane>
inline float sum_of_register(Register x, std::integer_sequence<int, kLane...> lanes) {
  x += __builtin_shufflevector(x, x, (kLane % kWidth + kWidth)...);
  if constexpr (kWidth > 1) {
    return sum_of_register<kWidth / 2>(x, lanes);
  } else {
    return x[0];
  }
}
inline float sum_of(Lanes x) {
  for (int64_t count = kRegisters / 2; count > 0; count /= 2) {
    for (int64_t i = 0; i < count; ++i) x.part[i] += x.part[i + count];
  }
  return sum_of_register<kRegisterLanes / 2>(x.part[0],
                                             std::make_integer_sequence<int, kRegisterLanes>{});
}

// Where a term of a sum reads its operands: kLanes of them, or one.
struct LanesAt {
  int64_t i;
  Lanes operator()(const float* p) const { return load(p + i); }
};
struct ElementAt {
  int64_t i;
  float operator()(const float* p) const { return p[i]; }
};

// sum over i < count of term(i), where term takes LanesAt or ElementAt and names operands by it:
//
//   dot = sum_over(count, [=](auto at) { return at(x) * at(y); });
//
// Lane l sums the terms l, l + kLanes, ..., on every machine: the vectorizer's own sums have as many lanes
// as a register.
template <class Term>
[[gnu::always_inline]] inline float sum_over(int64_t count, const Term& term) {
  Lanes sums = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) sums += term(LanesAt{i});
  if (i < count) {
    float rest[kLanes] = {};
    for (int64_t lane = 0; i + lane < count; ++lane) rest[lane] = term(ElementAt{i + lane});
    sums += load(rest);
  }
  return sum_of(sums);
}

// The same in f64, of terms term(i).
template <class Term>
inline double sum_over_f64(int64_t count, const Term& term) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int64_t lane = 0; i + lane < count; ++lane) lanes[lane] += term(i + lane);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace deltatrain::backend::cpu
