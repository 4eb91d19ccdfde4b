// Gradient norm, clipping and AdamW against closed forms and against torch.optim.AdamW, on the reference in f64 and on
// the CPU backend in f32.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/registry.h"
#include "formats/safetensors.h"
#include "ops/adamw.h"
#include "support/arrays.h"
#include "support/test_files.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

constexpr int64_t kSize = 200;  // three blocks of 64 and a part of one
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;

// Numbers in the backend's dtype.
class Numbers {
 public:
  Numbers(DType dtype, const std::vector<double>& values)
      : dtype_(dtype), f64_(values), f32_(values.begin(), values.end()) {}
  Tensor tensor() {
    const Shape shape = {static_cast<int64_t>(f64_.size())};
    return dtype_ == DType::kF64 ? Tensor(f64_.data(), dtype_, shape)
                                 : Tensor(f32_.data(), dtype_, shape);
  }
  Array array() const {
    Array result({static_cast<int64_t>(f64_.size())});
    if (dtype_ == DType::kF64) {
      result.values = f64_;
    } else {
      result.values.assign(f32_.begin(), f32_.end());
    }
    return result;
  }
  bool operator==(const Numbers& other) const { return f64_ == other.f64_ && f32_ == other.f32_; }

 private:
  DType dtype_;
  std::vector<double> f64_;
  std::vector<float> f32_;
};

class AdamWTest : public testing::TestWithParam<DeviceKind> {
 protected:
  AdamWTest()
      : backend_(backend::make_backend(GetParam())),
        dtype_(GetParam() == DeviceKind::kReference ? DType::kF64 : DType::kF32),
        arena_(host_memory(), size_t{1} << 20),
        context_(backend_->context(arena_, dtype_)) {}

  Numbers numbers(const std::vector<double>& values) const { return {dtype_, values}; }
  Numbers zeros() const { return numbers(std::vector<double>(kSize)); }
  double bound() const { return verify::tolerance(dtype_, verify::Quantity::kUpdate); }
  void expect_near(const Numbers& got, const std::vector<double>& want,
                   const std::string& what) const {
    Array expected({kSize});
    expected.values = want;
    EXPECT_LE(relative_error(got.array(), expected), bound()) << what;
  }

  // Norm and clip factor of `gradient`, with the loss where there is one.
  void finish(Numbers& gradient, ops::StepScalars& scalars, const double* loss = nullptr) const {
    ops::sum_of_squares(context_, {gradient.tensor(), &scalars});
    ops::finish_gradient_norm(context_, {.scalars = &scalars, .loss_sum = loss});
  }

  struct State {
    Numbers parameter, m, v;
    bool operator==(const State&) const = default;
  };
  State start(const std::vector<double>& parameter) const {
    return {numbers(parameter), zeros(), zeros()};
  }
  // Blocks of 64 numbers decay in turn, the first one does.
  void update(State& state, Numbers& gradient, ops::StepScalars& scalars, double decay) const {
    std::vector<uint8_t> decays = {1, 0, 1, 0};
    ops::adamw(context_, {.parameter_X = state.parameter.tensor(),
                          .gradient_X = gradient.tensor(),
                          .m_X = state.m.tensor(),
                          .v_X = state.v.tensor(),
                          .decays_X = Tensor(decays.data(), DType::kU8, {4}),
                          .scalars = &scalars,
                          .beta1 = kBeta1,
                          .beta2 = kBeta2,
                          .eps = kEps,
                          .weight_decay = decay});
  }
  static bool decays_at(size_t i) { return i / 64 % 2 == 0; }

 private:
  std::unique_ptr<backend::Backend> backend_;
  DType dtype_;
  Arena arena_;
  Context context_;
};

// Numbers that f32 holds, as the backends must all start from the same.
std::vector<double> random_numbers(uint64_t seed, double scale) {
  std::vector<double> values = normal({kSize}, seed, scale).values;
  for (double& value : values) value = static_cast<double>(static_cast<float>(value));
  return values;
}

// Signs in turn, sizes from 2^-26 (near eps) to 2^10, and a 0.
std::vector<double> gradients_of_many_sizes() {
  std::vector<double> values(kSize);
  for (size_t i = 1; i < values.size(); ++i)
    values[i] = std::ldexp(i % 2 == 0 ? 1.0 : -1.0, static_cast<int>(i % 37) - 26);
  return values;
}

// The step that a gradient of g has after any number of equal ones, without the rate: m / (1 - b1^t) = g and
// v / (1 - b2^t) = g^2.
double direction(double g) { return g == 0 ? 0 : std::copysign(1.0, g) / (1 + kEps / std::abs(g)); }

TEST_P(AdamWTest, TheFirstStepIsTheSignOfTheGradient) {
  const double rate = 0.125, decay = 0.25, clip = 0.5;
  const std::vector<double> p = random_numbers(1, 0.1), g = gradients_of_many_sizes();
  State state = start(p);
  Numbers gradient = numbers(g);
  ops::StepScalars scalars;
  scalars.gradient_norm = 2;
  scalars.clip_factor = clip;
  scalars.learning_rate = rate;
  update(state, gradient, scalars, decay);
  std::vector<double> parameter(p), m(g), v(g);
  for (size_t i = 0; i < p.size(); ++i) {
    parameter[i] -= rate * (direction(clip * g[i]) + (decays_at(i) ? decay : 0) * p[i]);
    m[i] = (1 - kBeta1) * clip * g[i];
    v[i] = (1 - kBeta2) * clip * clip * g[i] * g[i];
  }
  expect_near(state.parameter, parameter, "parameter");
  expect_near(state.m, m, "m");
  expect_near(state.v, v, "v");
}

TEST_P(AdamWTest, AConstantGradientMovesBySeriesOfEqualSteps) {
  const double rate = 0.125, decay = 0.25;
  const int num_steps = 20;
  const std::vector<double> p = random_numbers(2, 1), g = gradients_of_many_sizes();
  State state = start(p);
  Numbers gradient = numbers(g);
  ops::StepScalars scalars;
  scalars.learning_rate = rate;
  for (int step = 1; step <= num_steps; ++step) {
    scalars.step = step;
    update(state, gradient, scalars, decay);
  }
  // p_t = keep p_{t-1} - rate d, so p_t = keep^t p - rate d (1 + keep + ... + keep^{t-1}).
  const double keep = 1 - rate * decay, kept = std::pow(keep, num_steps);
  std::vector<double> parameter(p), m(g), v(g);
  for (size_t i = 0; i < p.size(); ++i) {
    parameter[i] = decays_at(i) ? kept * p[i] - rate * direction(g[i]) * (1 - kept) / (1 - keep)
                                : p[i] - rate * direction(g[i]) * num_steps;
    m[i] = (1 - std::pow(kBeta1, num_steps)) * g[i];
    v[i] = (1 - std::pow(kBeta2, num_steps)) * g[i] * g[i];
  }
  expect_near(state.parameter, parameter, "parameter");
  expect_near(state.m, m, "m");
  expect_near(state.v, v, "v");
}

TEST_P(AdamWTest, DecaysOnlyInItsRanges) {
  const std::vector<double> p = random_numbers(3, 1);
  State state = start(p);
  Numbers gradient = zeros();
  ops::StepScalars scalars;
  scalars.learning_rate = 0.125;
  update(state, gradient, scalars, 0.5);
  const Array got = state.parameter.array();
  for (size_t i = 0; i < p.size(); ++i) {
    if (decays_at(i)) {
      EXPECT_NEAR(got.values[i], (1 - 0.125 * 0.5) * p[i], bound() * std::abs(p[i])) << i;
    } else {
      EXPECT_EQ(got.values[i], p[i]) << i;
    }
  }
  EXPECT_EQ(state.m, zeros());
  EXPECT_EQ(state.v, zeros());
}

// Sums of squares of whole numbers are exact: 1 + 4 + ... + n^2 = n (n + 1) (2 n + 1) / 6.
TEST_P(AdamWTest, NormAndClipFactor) {
  for (const int n : {1, 63, 64, 1000}) {
    std::vector<double> values(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) values[static_cast<size_t>(i)] = i % 2 == 0 ? i + 1 : -(i + 1);
    Numbers gradient = numbers(values);
    const double sum = static_cast<double>(n) * (n + 1) * (2 * n + 1) / 6;
    const double norm = std::sqrt(sum);
    for (const double limit : {0.0, 0.5, norm, 2 * norm, 1e6}) {
      ops::StepScalars scalars;
      scalars.clip_grad = limit;
      finish(gradient, scalars);
      EXPECT_EQ(scalars.sum_of_squares, sum) << n;
      EXPECT_DOUBLE_EQ(scalars.gradient_norm, norm) << n;
      const bool clips = limit > 0 && limit <= norm;
      EXPECT_DOUBLE_EQ(scalars.clip_factor, clips ? limit / (norm + 1e-6) : 1) << n << " " << limit;
      EXPECT_EQ(scalars.skipped, 0);
    }
  }
}

TEST_P(AdamWTest, NothingChangesWhereNormOrLossIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    double element, loss;
  };
  for (const Case& c : {Case{infinity, 1}, Case{-infinity, 1}, Case{nan, 1}, Case{1, infinity},
                        Case{1, -infinity}, Case{1, nan}, Case{nan, nan}}) {
    std::vector<double> g = random_numbers(5, 0.01);
    g[131] = c.element;
    Numbers gradient = numbers(g);
    State state = {numbers(random_numbers(4, 1)), numbers(random_numbers(6, 1)),
                   numbers(std::vector<double>(kSize, 0.5))};
    const State before = state;
    ops::StepScalars scalars;
    scalars.learning_rate = 0.125;
    scalars.step = 7;
    finish(gradient, scalars, &c.loss);
    update(state, gradient, scalars, 0.1);
    EXPECT_EQ(scalars.skipped, 1) << c.element << " " << c.loss;
    EXPECT_EQ(state, before) << c.element << " " << c.loss;
  }
  // The same with finite numbers does change them, and a loss need not be given.
  for (const bool with_loss : {true, false}) {
    const double loss = 3;
    State state = start(random_numbers(4, 1));
    const State before = state;
    Numbers gradient = numbers(random_numbers(5, 0.01));
    ops::StepScalars scalars;
    scalars.learning_rate = 0.125;
    finish(gradient, scalars, with_loss ? &loss : nullptr);
    update(state, gradient, scalars, 0.1);
    EXPECT_EQ(scalars.skipped, 0);
    EXPECT_NE(state, before);
  }
}

// tests/golden/make_adamw.py.
TEST_P(AdamWTest, ThreeStepsOfTorchsOptimizer) {
  const formats::SafetensorsFile golden(golden_path("adamw.safetensors"));
  const auto stored = [&golden](const std::string& name) {
    const formats::StoredTensor& tensor = golden.at(name);
    std::vector<double> values(static_cast<size_t>(tensor.shape.num_elements()));
    formats::read_tensor(tensor, Tensor(values.data(), DType::kF64, tensor.shape), "golden", name);
    return values;
  };
  const std::vector<double> rates = stored("learning_rate");
  ASSERT_EQ(rates.size(), 3U);
  State state = start(stored("parameter.0"));
  for (size_t step = 1; step <= rates.size(); ++step) {
    const std::string number = std::to_string(step);
    Numbers gradient = numbers(stored("gradient." + number));
    ops::StepScalars scalars;
    scalars.learning_rate = rates[step - 1];
    scalars.step = static_cast<double>(step);
    scalars.clip_grad = 1;
    finish(gradient, scalars);
    const double norm = stored("norm." + number).front();
    EXPECT_NEAR(scalars.gradient_norm, norm, verify::kTwoFormsF64 * norm);
    EXPECT_EQ(scalars.clip_factor < 1, step != 2);
    update(state, gradient, scalars, 0.1);
    expect_near(state.parameter, stored("parameter." + number), "parameter." + number);
    expect_near(state.m, stored("m." + number), "m." + number);
    expect_near(state.v, stored("v." + number), "v." + number);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AdamWTest,
                         testing::Values(DeviceKind::kReference, DeviceKind::kCpu),
                         [](const auto& kind) { return backend::device_kind_name(kind.param); });

}  // namespace

}  // namespace deltatrain::test
