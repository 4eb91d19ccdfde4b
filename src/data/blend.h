// Several token files as one, and parts of a token file: Megatron's --data-path and --split.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace deltatrain::data {

struct BlendPath {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // as many, or none
};

// "PREFIX", "PREFIX PREFIX PREFIX" or "WEIGHT PREFIX WEIGHT PREFIX", apart by white space: weights
// when the number of words is even and every other one, from the first, is a number. ConfigError
// for an empty text, some numbers where others are none, or a weight that is not above 0.
BlendPath parse_blend_path(const std::string& text);

enum class SplitPart : uint8_t { kTrain = 0, kValid = 1, kTest = 2 };

// Shares for training, validation and test such as "99,1,0" as borders in [0, 1]; a part is absent
// when empty. ConfigError for anything that is not one to three numbers, or for their sum 0.
std::array<std::optional<std::pair<double, double>>, 3> parse_split(const std::string& split);

// The sequences [begin, end) of a part, of so many:
// borders times their number, rounded half to even.
std::pair<int64_t, int64_t> split_sequences(std::pair<double, double> borders,
                                            int64_t num_sequences);

// weights / their sum, added in the order in which numpy adds.
std::vector<double> normalized(std::vector<double> weights);

// How many samples each file of a weighted blend of `num_samples` gives, and how many are made
// ready for it (half a percent more).
struct BlendSizes {
  std::vector<int64_t> used;
  std::vector<int64_t> made;
};
BlendSizes blend_sizes(std::span<const double> normalized_weights, int64_t num_samples);

// The file from which each of the samples comes, and its number there.
struct BlendOrder {
  std::vector<int16_t> source;
  std::vector<int64_t> sample;
};

// Greedy: sample k comes from the source that is furthest
// behind weight * max(k, 1), the first of equals.
BlendOrder blend_order(std::span<const double> weights, int64_t num_samples);

// The same with weights in proportion to the sizes, until every source is used up.
BlendOrder exhaustive_blend_order(std::span<const int64_t> sizes);

}  // namespace deltatrain::data
