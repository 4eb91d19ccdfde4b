// PyTorch's CPU random numbers, bit for bit: what a reference trainer's seed means.
//
// Engine: MT19937 of 32 bits (Matsumoto and Nishimura, 1998), seeded by the low 32 bits of the
// seed. One f32 uniform takes one output x: (x mod 2^24) 2^-24, scaled by one fused multiply-add.
// Normals of 16 and more values are Box-Muller on blocks of 16 uniforms with single-precision
// polynomials for logarithm, sine and cosine; fewer than 16 take the scalar path in double. Checked
// against torch 2.11 and 1.13.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace deltatrain {

class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);  // torch.manual_seed(seed)

  uint32_t random();            // the next output of the engine
  void discard(int64_t count);  // as `count` calls of random(), faster

  // tensor.uniform_(from, to) of a contiguous f32 tensor; torch.rand is uniform(0, 1).
  void uniform(float* out, int64_t count, double from, double to);

  // tensor.normal_(mean, std) of a contiguous f32 tensor.
  void normal(float* out, int64_t count, double mean, double std);
  // Goes past the values that normal() would draw.
  void discard_normal(int64_t count);

  // torch.randperm(count).
  std::vector<int64_t> randperm(int64_t count);

 private:
  void twist();
  void uniform_01(float* out, int64_t count);
  double uniform_double();
  double scalar_normal();

  std::array<uint32_t, 624> state_;
  size_t next_ = 624;
  std::optional<double> cached_normal_;  // the second value of the scalar path's last pair
};

}  // namespace deltatrain
