#include "model/initialization.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace deltatrain {

namespace {

double draw(const layers::ParameterInfo& info, const RandomStream& stream, double range,
            uint64_t index) {
  switch (info.init) {
    case layers::Init::kNormal:
      return range * stream.normal(index);
    case layers::Init::kOne:
      return 1;
    case layers::Init::kZero:
    case layers::Init::kZeroA:
      return 0;
    case layers::Init::kLogUniformA:
      // 1 - u lies in (0, 1], so the lower end 0 is never hit and the logarithm is finite.
      return std::log(info.init_low + (16 - info.init_low) * (1 - stream.uniform(index)));
    case layers::Init::kInverseSoftplus: {
      const double low = std::log(1e-3), high = std::log(1e-1);
      const double step = std::max(1e-4, std::exp(low + (high - low) * stream.uniform(index)));
      return step + std::log(-std::expm1(-step));
    }
  }
  return 0;
}

template <class T>
void fill(const Context& context, const Tensor& target, const layers::ParameterInfo& info,
          double range, uint64_t seed) {
  const RandomStream stream(seed, info.name);
  const int64_t n = info.num_elements();
  const int64_t block = int64_t{1} << 22;
  std::vector<T> values(static_cast<size_t>(std::min(n, block)));
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t count = std::min(block, n - begin);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i)] =
          static_cast<T>(draw(info, stream, range, static_cast<uint64_t>(begin + i)));
    }
    context.device->copy_to_device(target.data<T>() + begin, values.data(),
                                   static_cast<size_t>(count) * sizeof(T));
  }
}

}  // namespace

void initialize(const Context& context, const layers::ParameterStore& store,
                double initializer_range, uint64_t seed, const Tensor& flat_X) {
  for (const layers::ParameterInfo& info : store.infos()) {
    const Tensor target = flat_X.rows(info.offset, info.offset + info.num_elements());
    if (target.dtype() == DType::kF64) {
      fill<double>(context, target, info, initializer_range, seed);
    } else {
      fill<float>(context, target, info, initializer_range, seed);
    }
  }
}

void initialize(const Context& context, layers::ParameterStore& store, double initializer_range,
                uint64_t seed) {
  initialize(context, store, initializer_range, seed, store.flat_master());
  store.refresh_compute(context);
}

}  // namespace deltatrain
