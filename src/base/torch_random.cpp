// Compiled with -ffp-contract=off: every fused multiply-add
// below is written out, and no other may appear.

#include "base/torch_random.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace deltatrain {

namespace {

constexpr size_t kStateSize = 624;
constexpr size_t kShift = 397;
constexpr float kTwoPi = 6.283185307179586F;

// Coefficients of the single-precision polynomials, highest power first.
constexpr float kLog[9] = {7.0376836292e-2F,  -1.1514610310e-1F, 1.1676998740e-1F,
                           -1.2420140846e-1F, 1.4249322787e-1F,  -1.6668057665e-1F,
                           2.0000714765e-1F,  -2.4999993993e-1F, 3.3333331174e-1F};
constexpr float kLogLow = -2.12194440e-4F;  // ln 2 = 0.693359375 + kLogLow
constexpr float kLogHigh = 0.693359375F;
constexpr float kSqrtHalf = 0.707106781186547524F;
constexpr float kFourOverPi = 1.27323954473516F;
constexpr float kReduce[3] = {-0.78515625F, -2.4187564849853515625e-4F, -3.77489497744594108e-8F};
constexpr float kCos[3] = {2.443315711809948e-5F, -1.388731625493765e-3F, 4.166664568298827e-2F};
constexpr float kSin[3] = {-1.9515295891e-4F, 8.3321608736e-3F, -1.6666654611e-1F};

uint32_t temper(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

uint32_t mix(uint32_t high, uint32_t low) {
  const uint32_t y = (high & 0x80000000U) | (low & 0x7fffffffU);
  return (y >> 1) ^ ((low & 1U) != 0 ? 0x9908b0dfU : 0U);
}

float log_f32(float x) {
  x = std::max(x, 1.17549435e-38F);
  uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  float e = static_cast<float>(static_cast<int32_t>(word >> 23) - 126);
  word = (word & 0x807fffffU) | 0x3f000000U;
  std::memcpy(&x, &word, sizeof x);  // in [0.5, 1)
  const bool below = x < kSqrtHalf;
  const float t = below ? x : 0.0F;
  x = x - 1.0F;
  e = e - (below ? 1.0F : 0.0F);
  x = x + t;
  const float z = x * x;
  float y = kLog[0];
  for (int i = 1; i < 9; ++i) y = std::fma(y, x, kLog[i]);
  y = y * x;
  y = std::fma(y, z, e * kLogLow);
  y = std::fma(-z, 0.5F, y);
  x = x + y;
  return std::fma(e, kLogHigh, x);
}

void sincos_f32(float x, float& sine, float& cosine) {  // x >= 0
  auto j = static_cast<int32_t>(x * kFourOverPi);
  j = (j + 1) & ~1;
  const auto y = static_cast<float>(j);
  for (const float part : kReduce) x = std::fma(y, part, x);
  const float z = x * x;
  float c = std::fma(std::fma(kCos[0], z, kCos[1]), z, kCos[2]);
  c = c * z;
  c = std::fma(c, z, -(z * 0.5F));
  c = c + 1.0F;
  float s = std::fma(std::fma(kSin[0], z, kSin[1]), z, kSin[2]);
  s = s * z;
  s = std::fma(s, x, x);
  const bool swapped = (j & 2) != 0;
  sine = swapped ? c : s;
  cosine = swapped ? s : c;
  if ((j & 4) != 0) sine = -sine;
  if (((j - 2) & 4) == 0) cosine = -cosine;
}

// One block: 16 uniforms become 16 normals.
void box_muller_16(float* d, float mean, float std) {
  for (int j = 0; j < 8; ++j) {
    const float u1 = 1.0F - d[j];
    const float theta = kTwoPi * d[j + 8];
    const float radius = std::sqrt(-2.0F * log_f32(u1));
    float sine;
    float cosine;
    sincos_f32(theta, sine, cosine);
    d[j] = std::fma(radius * cosine, std, mean);
    d[j + 8] = std::fma(radius * sine, std, mean);
  }
}

void box_muller_plain(float* d, int64_t num_blocks, float mean, float std) {
  for (int64_t i = 0; i < num_blocks; ++i) box_muller_16(d + 16 * i, mean, std);
}

#if defined(__x86_64__)

#define DELTATRAIN_AVX2 __attribute__((target("avx2,fma")))

DELTATRAIN_AVX2 __m256 log_avx2(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0F);
  x = _mm256_max_ps(x, _mm256_set1_ps(1.17549435e-38F));
  const __m256i word = _mm256_castps_si256(x);
  __m256 e =
      _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(word, 23), _mm256_set1_epi32(126)));
  x = _mm256_or_ps(
      _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0x807fffffU)))),
      _mm256_set1_ps(0.5F));
  const __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(kSqrtHalf), _CMP_LT_OS);
  const __m256 t = _mm256_and_ps(x, below);
  x = _mm256_sub_ps(x, one);
  e = _mm256_sub_ps(e, _mm256_and_ps(one, below));
  x = _mm256_add_ps(x, t);
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 y = _mm256_set1_ps(kLog[0]);
  for (int i = 1; i < 9; ++i) y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(kLog[i]));
  y = _mm256_mul_ps(y, x);
  y = _mm256_fmadd_ps(y, z, _mm256_mul_ps(e, _mm256_set1_ps(kLogLow)));
  y = _mm256_fnmadd_ps(z, _mm256_set1_ps(0.5F), y);
  x = _mm256_add_ps(x, y);
  return _mm256_fmadd_ps(e, _mm256_set1_ps(kLogHigh), x);
}

DELTATRAIN_AVX2 void sincos_avx2(__m256 x, __m256& sine, __m256& cosine) {
  __m256i j = _mm256_cvttps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(kFourOverPi)));
  j = _mm256_and_si256(_mm256_add_epi32(j, _mm256_set1_epi32(1)), _mm256_set1_epi32(~1));
  const __m256 y = _mm256_cvtepi32_ps(j);
  for (const float part : kReduce) x = _mm256_fmadd_ps(y, _mm256_set1_ps(part), x);
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 c = _mm256_fmadd_ps(_mm256_set1_ps(kCos[0]), z, _mm256_set1_ps(kCos[1]));
  c = _mm256_fmadd_ps(c, z, _mm256_set1_ps(kCos[2]));
  c = _mm256_mul_ps(c, z);
  c = _mm256_fmsub_ps(c, z, _mm256_mul_ps(z, _mm256_set1_ps(0.5F)));
  c = _mm256_add_ps(c, _mm256_set1_ps(1.0F));
  __m256 s = _mm256_fmadd_ps(_mm256_set1_ps(kSin[0]), z, _mm256_set1_ps(kSin[1]));
  s = _mm256_fmadd_ps(s, z, _mm256_set1_ps(kSin[2]));
  s = _mm256_mul_ps(s, z);
  s = _mm256_fmadd_ps(s, x, x);
  // Bit 1 of j swaps the two; bit 2 of j and of ~(j - 2) are their signs.
  const __m256 swapped = _mm256_castsi256_ps(_mm256_slli_epi32(j, 30));  // blendv reads bit 31
  const __m256i four = _mm256_set1_epi32(4);
  const __m256i sine_sign = _mm256_slli_epi32(_mm256_and_si256(j, four), 29);
  const __m256i cosine_sign =
      _mm256_slli_epi32(_mm256_andnot_si256(_mm256_sub_epi32(j, _mm256_set1_epi32(2)), four), 29);
  sine = _mm256_xor_ps(_mm256_blendv_ps(s, c, swapped), _mm256_castsi256_ps(sine_sign));
  cosine = _mm256_xor_ps(_mm256_blendv_ps(c, s, swapped), _mm256_castsi256_ps(cosine_sign));
}

DELTATRAIN_AVX2 void box_muller_avx2(float* d, int64_t num_blocks, float mean, float std) {
  const __m256 means = _mm256_set1_ps(mean);
  const __m256 stds = _mm256_set1_ps(std);
  for (int64_t i = 0; i < num_blocks; ++i, d += 16) {
    const __m256 u1 = _mm256_sub_ps(_mm256_set1_ps(1.0F), _mm256_loadu_ps(d));
    const __m256 theta = _mm256_mul_ps(_mm256_set1_ps(kTwoPi), _mm256_loadu_ps(d + 8));
    const __m256 radius = _mm256_sqrt_ps(_mm256_mul_ps(_mm256_set1_ps(-2.0F), log_avx2(u1)));
    __m256 sine;
    __m256 cosine;
    sincos_avx2(theta, sine, cosine);
    _mm256_storeu_ps(d, _mm256_fmadd_ps(_mm256_mul_ps(radius, cosine), stds, means));
    _mm256_storeu_ps(d + 8, _mm256_fmadd_ps(_mm256_mul_ps(radius, sine), stds, means));
  }
}

#undef DELTATRAIN_AVX2

#endif

using BoxMuller = void (*)(float*, int64_t, float, float);

// Both give the same bits; the vector form is about eight times as fast.
BoxMuller choose_box_muller() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return box_muller_avx2;
#endif
  return box_muller_plain;
}

}  // namespace

namespace internal {

// For the test that both forms agree.
void torch_box_muller_plain(float* d, int64_t num_blocks, float mean, float std) {
  box_muller_plain(d, num_blocks, mean, std);
}

}  // namespace internal

TorchGenerator::TorchGenerator(uint64_t seed) {
  state_[0] = static_cast<uint32_t>(seed);
  for (uint32_t i = 1; i < kStateSize; ++i) {
    const uint32_t before = state_[i - 1];
    state_[i] = 1812433253U * (before ^ (before >> 30)) + i;
  }
}

void TorchGenerator::twist() {
  uint32_t* s = state_.data();
  for (size_t i = 0; i < kStateSize - kShift; ++i) s[i] = s[i + kShift] ^ mix(s[i], s[i + 1]);
  for (size_t i = kStateSize - kShift; i < kStateSize - 1; ++i) {
    s[i] = s[i + kShift - kStateSize] ^ mix(s[i], s[i + 1]);
  }
  s[kStateSize - 1] = s[kShift - 1] ^ mix(s[kStateSize - 1], s[0]);
  next_ = 0;
}

uint32_t TorchGenerator::random() {
  if (next_ == kStateSize) twist();
  return temper(state_[next_++]);
}

void TorchGenerator::discard(int64_t count) {
  while (count > 0) {
    if (next_ == kStateSize) twist();
    const int64_t n = std::min(count, static_cast<int64_t>(kStateSize - next_));
    next_ += static_cast<size_t>(n);
    count -= n;
  }
}

void TorchGenerator::uniform_01(float* out, int64_t count) {
  while (count > 0) {
    if (next_ == kStateSize) twist();
    const int64_t n = std::min(count, static_cast<int64_t>(kStateSize - next_));
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = temper(state_[next_ + static_cast<size_t>(i)]) & 0xffffffU;
      out[i] = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-24F;
    }
    next_ += static_cast<size_t>(n);
    out += n;
    count -= n;
  }
}

void TorchGenerator::uniform(float* out, int64_t count, double from, double to) {
  uniform_01(out, count);
  const auto low = static_cast<float>(from);
  const float width = static_cast<float>(to) - low;
  if (low == 0.0F && width == 1.0F) return;
  for (int64_t i = 0; i < count; ++i) out[i] = std::fma(out[i], width, low);
}

double TorchGenerator::uniform_double() {
  const uint64_t high = random();
  const uint64_t bits = (high << 32) | random();
  return static_cast<double>(bits & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
}

double TorchGenerator::scalar_normal() {
  if (cached_normal_) {
    const double value = *cached_normal_;
    cached_normal_.reset();
    return value;
  }
  const double u1 = uniform_double();
  const double u2 = uniform_double();
  const double radius = std::sqrt(-2.0 * std::log1p(-u2));
  const double theta = 2.0 * 3.14159265358979323846 * u1;
  cached_normal_ = radius * std::sin(theta);
  return radius * std::cos(theta);
}

void TorchGenerator::normal(float* out, int64_t count, double mean, double std) {
  if (count < 16) {
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(scalar_normal() * std + mean);
    return;
  }
  static const BoxMuller box_muller = choose_box_muller();
  const auto mean_f32 = static_cast<float>(mean);
  const auto std_f32 = static_cast<float>(std);
  // In pieces that stay in the cache between drawing and transforming.
  constexpr int64_t kPiece = 16 * 624;
  const int64_t in_blocks = count / 16 * 16;
  for (int64_t begin = 0; begin < in_blocks; begin += kPiece) {
    const int64_t n = std::min(kPiece, in_blocks - begin);
    uniform_01(out + begin, n);
    box_muller(out + begin, n / 16, mean_f32, std_f32);
  }
  if (in_blocks < count) {
    // The rest is drawn, then the last 16 values are
    // drawn anew and overwrite part of the last block.
    discard(count - in_blocks);
    uniform_01(out + count - 16, 16);
    box_muller(out + count - 16, 1, mean_f32, std_f32);
  }
}

void TorchGenerator::discard_normal(int64_t count) {
  if (count < 16) {
    for (int64_t i = 0; i < count; ++i) scalar_normal();
  } else {
    discard(count + (count % 16 == 0 ? 0 : 16));
  }
}

std::vector<int64_t> TorchGenerator::randperm(int64_t count) {
  DELTATRAIN_CHECK(count >= 0 && count < (int64_t{1} << 32), std::to_string(count));
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = 0; i + 1 < count; ++i) {
    const int64_t offset = static_cast<int64_t>(random()) % (count - i);
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(i + offset)]);
  }
  return order;
}

}  // namespace deltatrain
