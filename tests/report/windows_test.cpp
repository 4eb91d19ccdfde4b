#include "report/windows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace deltatrain::report {
namespace {

double curve(int64_t step) { return 2.5 + 9.5 * std::exp(-static_cast<double>(step) / 150); }

double mean_of_curve(int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t step = begin + 1; step <= end; ++step) sum += curve(step);
  return sum / static_cast<double>(end - begin);
}

// The curve as means over `interval` steps.
std::vector<LossWindow> logged(int64_t interval, int64_t last) {
  std::vector<LossWindow> windows;
  for (int64_t end = interval; end <= last; end += interval)
    windows.push_back({end - interval, end, mean_of_curve(end - interval, end), interval});
  return windows;
}

TEST(WindowsTest, OneCurveLoggedOverAnyStepsIsEqual) {
  for (const int64_t interval_a : {1, 7, 32, 100}) {
    for (const int64_t interval_b : {1, 32, 100}) {
      const std::vector<LossWindow> a = logged(interval_a, 4768), b = logged(interval_b, 4768);
      const std::vector<EqualWindow> windows = equal_windows(LossSums(a), LossSums(b));
      ASSERT_FALSE(windows.empty());
      int64_t expected = 0;
      const int64_t multiple = std::lcm(interval_a, interval_b);
      for (const EqualWindow& window : windows) {
        EXPECT_EQ(window.begin, expected);
        EXPECT_EQ(window.end, window.begin + multiple);
        expected = window.end;
        EXPECT_NEAR(window.a, mean_of_curve(window.begin, window.end), 1e-9);
        EXPECT_NEAR(window.b, window.a, 1e-9);
      }
      EXPECT_EQ(expected, 4768 / multiple * multiple);
    }
  }
}

TEST(WindowsTest, AWindowInsideTheNextSplitsIt) {
  // Megatron's first line is of iteration 1, and the next of 1 to 10.
  const std::vector<LossWindow> windows = {{0, 1, curve(1), 1}, {0, 10, mean_of_curve(0, 10), 10}};
  const LossSums sums(windows);
  EXPECT_NEAR(sums.mean(1, 10).value(), mean_of_curve(1, 10), 1e-12);
  EXPECT_NEAR(sums.mean(0, 10).value(), mean_of_curve(0, 10), 1e-12);
}

TEST(WindowsTest, StepsThatWereNotLoggedAreNotBridged) {
  const std::vector<LossWindow> windows = {{0, 10, 5, 10}, {20, 30, 3, 10}, {30, 40, 2, 10}};
  const LossSums sums(windows);
  EXPECT_EQ(sums.mean(10, 20), std::nullopt);
  EXPECT_EQ(sums.mean(0, 30), std::nullopt);
  EXPECT_EQ(sums.mean(5, 10), std::nullopt);
  EXPECT_EQ(sums.mean(20, 40), 2.5);
  EXPECT_EQ(sums.mean(40, 20), std::nullopt);
}

TEST(WindowsTest, SkippedStepsDoNotCountAndUnknownOnesBreakTheChain) {
  const double none = std::nan("");
  const std::vector<LossWindow> skipped = {{0, 1, 4, 1}, {1, 2, none, 0}, {2, 3, 6, 1}};
  EXPECT_EQ(LossSums(skipped).mean(0, 3), 5);  // of two steps
  EXPECT_EQ(LossSums(skipped).mean(1, 2), std::nullopt);
  const std::vector<LossWindow> unknown = {{0, 10, 4, 10}, {10, 20, none, 10}, {20, 30, 6, 10}};
  EXPECT_EQ(LossSums(unknown).mean(0, 30), std::nullopt);
  EXPECT_EQ(LossSums(unknown).mean(20, 30), 6);
}

TEST(WindowsTest, WindowsAreAtLeastAsLongAsAsked) {
  const std::vector<LossWindow> steps = logged(1, 100);
  const auto windows = equal_windows(LossSums(steps), LossSums(steps), 25);
  ASSERT_EQ(windows.size(), 4U);
  EXPECT_EQ(windows[3].begin, 75);
  EXPECT_NEAR(windows[3].a, mean_of_curve(75, 100), 1e-9);
}

}  // namespace
}  // namespace deltatrain::report
