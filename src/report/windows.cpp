#include "report/windows.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace deltatrain::report {

LossSums::LossSums(std::span<const LossWindow> windows) {
  int64_t num_chains = 0;
  for (const LossWindow& window : windows) {
    if (window.begin >= window.end || nodes_.contains(window.end)) continue;
    // Nothing is known of the steps of a window whose mean is none, unless none of them counts.
    const bool counts = std::isfinite(window.loss) && window.counted > 0;
    if (!counts && window.counted > 0) continue;
    auto start = nodes_.find(window.begin);
    if (start == nodes_.end())
      start = nodes_.emplace(window.begin, Node{.chain = num_chains++}).first;
    Node node = start->second;
    if (counts) {
      node.sum += window.loss * static_cast<double>(window.counted);
      node.counted += static_cast<double>(window.counted);
    }
    nodes_.emplace(window.end, node);
  }
}

std::vector<int64_t> LossSums::steps() const {
  std::vector<int64_t> steps;
  steps.reserve(nodes_.size());
  for (const auto& [step, node] : nodes_) steps.push_back(step);
  return steps;
}

std::optional<double> LossSums::mean(int64_t begin, int64_t end) const {
  const auto from = nodes_.find(begin), to = nodes_.find(end);
  if (begin >= end || from == nodes_.end() || to == nodes_.end()) return {};
  if (from->second.chain != to->second.chain) return {};
  const double counted = to->second.counted - from->second.counted;
  const double mean = (to->second.sum - from->second.sum) / counted;
  if (!(counted > 0) || !std::isfinite(mean)) return {};
  return mean;
}

std::vector<EqualWindow> equal_windows(const LossSums& a, const LossSums& b, int64_t min_steps) {
  const std::vector<int64_t> steps_a = a.steps(), steps_b = b.steps();
  std::vector<int64_t> common;
  std::set_intersection(steps_a.begin(), steps_a.end(), steps_b.begin(), steps_b.end(),
                        std::back_inserter(common));
  std::vector<EqualWindow> windows;
  if (common.empty()) return windows;
  int64_t begin = common.front();
  for (size_t i = 1; i < common.size(); ++i) {
    const int64_t end = common[i];
    if (end - begin < min_steps) continue;
    const std::optional<double> mean_a = a.mean(begin, end), mean_b = b.mean(begin, end);
    if (mean_a && mean_b) windows.push_back({begin, end, *mean_a, *mean_b});
    begin = end;
  }
  return windows;
}

}  // namespace deltatrain::report
