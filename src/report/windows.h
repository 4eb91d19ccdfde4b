// Losses of two runs over the same steps, although each was logged as means over steps of its own.
//
// A window (b, e] of mean m over n steps adds n m to a running sum. Where the sums at two steps
// are both known, their difference is the loss over the steps between, whatever the windows in
// between were: so each run is a table of sums at the ends of its windows, and two runs have equal
// windows between the ends that both have.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "report/run.h"

namespace deltatrain::report {

class LossSums {
 public:
  explicit LossSums(std::span<const LossWindow> windows);

  // Ascending steps at which a sum is known.
  std::vector<int64_t> steps() const;
  // Mean loss after `begin` up to and with `end`; none where the sum is not known at either, where
  // steps between them were not logged, or where none of them had a finite loss.
  std::optional<double> mean(int64_t begin, int64_t end) const;

 private:
  struct Node {
    int64_t chain = 0;   // sums of one chain can be subtracted
    double sum = 0;      // of losses since the chain's start
    double counted = 0;  // steps
  };
  std::map<int64_t, Node> nodes_;
};

struct EqualWindow {
  int64_t begin = 0;
  int64_t end = 0;
  double a = 0;
  double b = 0;
  double difference_percent() const { return 100 * (b - a) / a; }
};

// The finest windows that both runs know, ascending, none overlapping another, each at least
// `min_steps` long.
std::vector<EqualWindow> equal_windows(const LossSums& a, const LossSums& b, int64_t min_steps = 1);

}  // namespace deltatrain::report
