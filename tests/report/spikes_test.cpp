#include "report/spikes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deltatrain::report {
namespace {

// Losses around 3 with a standard deviation of 0.01: +-0.01 in turn.
double steady(int i) { return 3 + (i % 2 == 0 ? 0.01 : -0.01); }

TEST(SpikesTest, OnlyWhatStandsOutIsOne) {
  SpikeDetector detector;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(detector.is_spike(steady(i)));
  EXPECT_FALSE(detector.is_spike(3.14));  // 14 deviations, but less than 5 % of the mean
  EXPECT_FALSE(detector.is_spike(2.0));   // below
  SpikeDetector fresh;
  for (int i = 0; i < 100; ++i) fresh.is_spike(steady(i));
  EXPECT_TRUE(fresh.is_spike(3.2));
  EXPECT_NEAR(fresh.mean(), 3, 1e-12);
  EXPECT_TRUE(fresh.is_spike(3.2)) << "the first spike was taken into the mean";
  EXPECT_FALSE(fresh.is_spike(3.01));
}

TEST(SpikesTest, NothingIsOneWhileThereIsLittleToCompareWithOrTheLossesScatter) {
  SpikeDetector detector;
  for (size_t i = 0; i + 1 < SpikeDetector::kWindow; ++i) EXPECT_FALSE(detector.is_spike(3));
  EXPECT_FALSE(detector.is_spike(30));
  SpikeDetector scattered;
  for (int i = 0; i < 64; ++i) scattered.is_spike(i % 2 == 0 ? 2 : 4);
  EXPECT_FALSE(scattered.is_spike(8));  // less than six deviations of 1
}

TEST(SpikesTest, ALastingRiseBecomesTheNewLevel) {
  SpikeDetector detector;
  for (int i = 0; i < 100; ++i) detector.is_spike(steady(i));
  size_t spikes = 0;
  for (int i = 0; i < 200; ++i) spikes += detector.is_spike(9 + steady(i)) ? 1 : 0;
  EXPECT_EQ(spikes, SpikeDetector::kWindow - 1);
}

TEST(SpikesTest, LossesThatAreNotFiniteAreNoSpikes) {
  SpikeDetector detector;
  for (int i = 0; i < 100; ++i) detector.is_spike(steady(i));
  EXPECT_FALSE(detector.is_spike(std::nan("")));
  EXPECT_FALSE(detector.is_spike(INFINITY));
  EXPECT_TRUE(detector.is_spike(5));
}

}  // namespace
}  // namespace deltatrain::report
