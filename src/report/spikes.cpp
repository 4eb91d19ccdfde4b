#include "report/spikes.h"

#include <cmath>

namespace deltatrain::report {

bool SpikeDetector::is_spike(double loss) {
  if (!std::isfinite(loss)) return false;
  if (count_ >= kWindow) {
    double sum = 0, squares = 0;
    for (const double value : losses_) sum += value;
    mean_ = sum / kWindow;
    for (const double value : losses_) squares += (value - mean_) * (value - mean_);
    const double deviation = std::sqrt(squares / (kWindow - 1));
    const bool spike = loss > mean_ + 6 * deviation && loss > mean_ + 0.05 * std::abs(mean_) &&
                       ++in_a_row_ < kWindow;
    if (spike) return true;
    if (in_a_row_ >= kWindow) count_ = 0;
  }
  in_a_row_ = 0;
  losses_[count_ % kWindow] = loss;
  ++count_;
  return false;
}

}  // namespace deltatrain::report
