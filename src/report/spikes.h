// Losses that stand out from the ones before them.
#pragma once

#include <array>
#include <cstddef>

namespace deltatrain::report {

// A loss is a spike when it exceeds the mean of the 32 finite losses before it by more than six of
// their standard deviations and by more than 5 % of that mean. Spikes are not taken into the mean,
// unless as many follow each other as it spans: then they are the new level.
class SpikeDetector {
 public:
  static constexpr size_t kWindow = 32;

  // Takes the next loss; false where it is not finite.
  bool is_spike(double loss);
  // Of the losses that the last answer was measured against; 0 before there are kWindow.
  double mean() const { return mean_; }

 private:
  std::array<double, kWindow> losses_{};
  size_t count_ = 0;  // taken in
  size_t in_a_row_ = 0;
  double mean_ = 0;
};

}  // namespace deltatrain::report
