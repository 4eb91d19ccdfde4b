// The chunked delta rule of the CPU backend in f32 against the token recurrence in double.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "backend/cpu/delta_rule_run.h"
#include "verify/tolerance.h"

namespace deltatrain::test {

namespace {

constexpr double kBound = verify::kMixerF32;
constexpr int64_t kLengths[] = {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 129, 513};

class DeltaRuleCpuTest : public testing::TestWithParam<bool> {
 protected:
  bool per_channel() const { return GetParam(); }
  DeltaResult want(const DeltaProblem& problem, bool gradients = true) {
    return reference_.run(problem, gradients);
  }
  DeltaResult got(const DeltaProblem& problem, bool gradients = true) {
    return cpu_.run(problem, gradients);
  }
  // 32 x 64 as KDA has it, 64 x 64 as GDN, with two value heads per key head.
  DeltaOptions model_options(std::vector<int64_t> lengths) const {
    DeltaOptions options;
    options.lengths = std::move(lengths);
    options.H = per_channel() ? 2 : 1;
    options.G = 2;
    options.K = per_channel() ? 32 : 64;
    options.V = 64;
    options.per_channel = per_channel();
    return options;
  }

 private:
  DeltaRunner reference_{DeviceKind::kReference, DType::kF64};
  DeltaRunner cpu_{DeviceKind::kCpu, DType::kF32};
};

TEST_P(DeltaRuleCpuTest, MatchesRecurrenceAtEveryLength) {
  for (const int64_t T : kLengths) {
    const DeltaProblem problem = make_delta_problem(model_options({T}));
    expect_near(got(problem), want(problem), kBound, "T " + std::to_string(T));
  }
}

TEST_P(DeltaRuleCpuTest, MatchesRecurrenceOnPackedSequences) {
  const DeltaProblem problem = make_delta_problem(model_options({1, 70, 16, 3, 128, 1}));
  expect_near(got(problem), want(problem), kBound, "packed");
}

TEST_P(DeltaRuleCpuTest, MatchesRecurrenceWithoutStates) {
  DeltaOptions options = model_options({100, 5});
  options.states = false;
  const DeltaProblem problem = make_delta_problem(options);
  expect_near(got(problem), want(problem), kBound, "no states");
}

TEST_P(DeltaRuleCpuTest, MatchesRecurrenceForOddHeads) {
  for (const auto& [K, V] :
       {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {17, 33}, {100, 20}, {128, 128}, {200, 60}}) {
    DeltaOptions options = model_options({80});
    options.H = 1;
    options.G = 3;
    options.K = K;
    options.V = V;
    const DeltaProblem problem = make_delta_problem(options);
    expect_near(got(problem), want(problem), kBound, std::to_string(K) + " x " + std::to_string(V));
  }
}

TEST_P(DeltaRuleCpuTest, MatchesRecurrenceForLogGatesFromNothingToMinus320) {
  for (const double log_gate : {0.0, 1e-4, 0.01, 1.0, 5.0, 20.0, 80.0, 320.0}) {
    DeltaOptions options = model_options({129});
    options.log_gate = log_gate;
    const DeltaProblem problem = make_delta_problem(options);
    expect_near(got(problem), want(problem), kBound, "log gate " + std::to_string(log_gate));
  }
}

// Every gate at its extreme, single tokens that wipe the state out, and blocks of strong decay.
TEST_P(DeltaRuleCpuTest, MatchesRecurrenceForGatesOfMixedStrength) {
  DeltaProblem problem = make_delta_problem(model_options({200}));
  const size_t per_row = problem.g.values.size() / 200;
  for (size_t row = 0; row < 200; ++row) {
    for (size_t i = 0; i < per_row; ++i) {
      double& g = problem.g.values[row * per_row + i];
      if (row % 37 == 5) g = -320;
      if (row % 37 == 6) g = 0;
      if (row >= 100 && row < 117) g *= 1000;
      if (row >= 150 && row < 160) g = i % 2 == 0 ? -320 : -1e-3;
    }
  }
  expect_near(got(problem), want(problem), kBound, "mixed");
}

TEST_P(DeltaRuleCpuTest, MatchesRecurrenceForIdenticalAndZeroKeys) {
  for (const double g : {0.0, -1e-4, -20.0}) {
    DeltaProblem problem = make_delta_problem(model_options({96}));
    const int64_t width = problem.k.shape[1] * problem.k.shape[2];
    for (size_t i = 0; i < problem.k.values.size(); ++i) {
      const size_t row = i / static_cast<size_t>(width);
      problem.k.values[i] = row % 11 == 3 ? 0.0 : problem.k.values[i % static_cast<size_t>(width)];
    }
    for (double& value : problem.g.values) value = g;
    for (double& value : problem.beta.values) value = 1;
    expect_near(got(problem), want(problem), kBound, "gate " + std::to_string(g));
  }
}

TEST_P(DeltaRuleCpuTest, MatchesRecurrenceForStrengthsUpToTwo) {
  DeltaProblem problem = make_delta_problem(model_options({130}));
  for (double& beta : problem.beta.values) beta *= 2;
  expect_near(got(problem), want(problem), kBound, "beta to 2");
}

// Rows [begin, end) of one sequence as a problem of its own, from a given state.
DeltaProblem rows_of(const DeltaProblem& problem, int64_t begin, int64_t end, const Array& state) {
  const auto cut = [&](const Array& array) {
    Array part = array;
    Shape shape = {end - begin};
    for (int axis = 1; axis < array.shape.rank(); ++axis) shape.append(array.shape[axis]);
    const auto width = static_cast<std::ptrdiff_t>(array.values.size()) / array.shape[0];
    part.values = {array.values.begin() + begin * width, array.values.begin() + end * width};
    part.shape = shape;
    return part;
  };
  DeltaProblem part = problem;
  part.offsets = {0, static_cast<int32_t>(end - begin)};
  for (Array DeltaProblem::*member :
       {&DeltaProblem::q, &DeltaProblem::k, &DeltaProblem::v, &DeltaProblem::g, &DeltaProblem::beta,
        &DeltaProblem::d_out}) {
    part.*member = cut(problem.*member);
  }
  part.initial_state = state;
  return part;
}

TEST_P(DeltaRuleCpuTest, AnySplitWithCarriedStateEqualsTheWhole) {
  for (const int64_t T : kLengths) {
    const DeltaProblem problem = make_delta_problem(model_options({T}));
    const DeltaResult whole = want(problem, false);
    // A token at a time (step 1), then ever larger parts.
    for (const int64_t part : {1, 2, 7, 16, 64, 100}) {
      Array state = *problem.initial_state;
      Array o = whole.o;
      auto to = o.values.begin();
      for (int64_t begin = 0; begin < T; begin += part) {
        const DeltaResult result =
            got(rows_of(problem, begin, std::min(T, begin + part), state), false);
        to = std::copy(result.o.values.begin(), result.o.values.end(), to);
        state = result.final_state;
      }
      const std::string what = "T " + std::to_string(T) + " in parts of " + std::to_string(part);
      EXPECT_LE(relative_error(o, whole.o), kBound) << what;
      EXPECT_LE(relative_error(state, whole.final_state), kBound) << what;
    }
  }
}

TEST_P(DeltaRuleCpuTest, OutputsBeforeAPositionDoNotDependOnWhatFollows) {
  const int64_t T = 150;
  const DeltaProblem problem = make_delta_problem(model_options({T}));
  DeltaOptions other_options = model_options({T});
  other_options.seed = 2;
  const DeltaProblem other = make_delta_problem(other_options);
  const DeltaResult want_bits = got(problem);
  for (const int64_t p : {0, 1, 7, 15, 16, 17, 40, 63, 64, 65, 100, 149}) {
    DeltaProblem changed = problem;
    for (Array DeltaProblem::*member : {&DeltaProblem::q, &DeltaProblem::k, &DeltaProblem::v,
                                        &DeltaProblem::g, &DeltaProblem::beta}) {
      std::vector<double>& values = (changed.*member).values;
      const auto from = static_cast<std::ptrdiff_t>(values.size()) / T * p;
      std::copy((other.*member).values.begin() + from, (other.*member).values.end(),
                values.begin() + from);
    }
    const DeltaResult result = got(changed);
    const auto kept = static_cast<std::ptrdiff_t>(result.o.values.size()) / T * p;
    EXPECT_TRUE(std::equal(result.o.values.begin(), result.o.values.begin() + kept,
                           want_bits.o.values.begin()))
        << "p " << p;
    EXPECT_FALSE(std::equal(result.o.values.begin() + kept, result.o.values.end(),
                            want_bits.o.values.begin() + kept))
        << "p " << p;
  }
}

TEST_P(DeltaRuleCpuTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const DeltaProblem problem = make_delta_problem(model_options({100, 64, 3}));
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const DeltaResult one = got(problem);
  for (const int threads : {2, 3, 5}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(worst_error(got(problem), one), 0) << threads << " threads";
  }
  omp_set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(Decays, DeltaRuleCpuTest, testing::Values(false, true),
                         [](const auto& param) { return param.param ? "PerChannel" : "PerHead"; });

}  // namespace

}  // namespace deltatrain::test
