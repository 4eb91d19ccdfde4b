#include "train/run_ranks.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"

namespace deltatrain::train {

namespace {

constexpr std::array<const char*, 3> kPartNames = {"weights", "exp_avg", "exp_avg_sq"};

// Places in a file system are each host's own; what lies there is compared by its digest.
bool is_path(std::string_view key) {
  constexpr std::array kPaths = {"data.train", "data.valid", "data.tokenizer",
                                 "checkpoint.init_from", "checkpoint.load"};
  return std::find(kPaths.begin(), kPaths.end(), key) != kPaths.end();
}

std::string recipe_lines(const ResolvedRecipe& resolved) {
  std::string lines;
  for (const RecipeValue& value : list_values(resolved)) {
    if (!is_path(value.key)) lines += value.key + ": " + value.text + "\n";
  }
  return lines;
}

std::map<std::string, std::string> parse_lines(const std::string& lines) {
  std::map<std::string, std::string> values;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) values[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return values;
}

// "key: value" of the first key that the two do not share, of each.
std::pair<std::string, std::string> first_difference(const std::string& ours,
                                                     const std::string& theirs) {
  const auto our_values = parse_lines(ours), their_values = parse_lines(theirs);
  std::map<std::string, std::string> all = our_values;
  all.insert(their_values.begin(), their_values.end());
  const auto text = [](const auto& values, const std::string& key) {
    const auto found = values.find(key);
    return found == values.end() ? "no such key" : found->second;
  };
  for (const auto& [key, unused] : all) {
    const std::string a = text(our_values, key), b = text(their_values, key);
    if (a != b) return {key + " " + a, b};
  }
  return {"the same text", "another"};
}

void expect_fitting_size(const TrainConfig& config, int size) {
  const int64_t batches = config.global_batch_size / config.micro_batch_size;
  if (config.global_batch_size % config.micro_batch_size == 0 && batches % size == 0) return;
  std::string sizes;
  for (int64_t n = 1; n <= batches && config.global_batch_size % config.micro_batch_size == 0;
       ++n) {
    if (batches % n == 0) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
  }
  throw ConfigError(error_text(
      "ranks", "number of ranks",
      "one that divides train.global_batch_size " + std::to_string(config.global_batch_size) +
          " / train.micro_batch_size " + std::to_string(config.micro_batch_size) + ": " +
          (sizes.empty() ? "none does" : sizes),
      std::to_string(size)));
}

}  // namespace

void RunRanks::begin(const ResolvedRecipe& resolved) {
  if (ranks_ == nullptr) return;
  const ParallelConfig& config = resolved.recipe.parallel;
  dist::Timeouts timeouts = ranks_->timeouts();
  timeouts.heartbeat_seconds = static_cast<double>(config.heartbeat_timeout_seconds);
  // Several beats may be late before silence counts.
  timeouts.beat_seconds = std::min(1.0, timeouts.heartbeat_seconds / 5);
  timeouts.collective_seconds = static_cast<double>(config.collective_timeout_seconds);
  ranks_->set_timeouts(timeouts);
  const std::vector<std::string> recipes = ranks_->all_gather("recipe", recipe_lines(resolved));
  for (size_t r = 1; r < recipes.size(); ++r) {
    if (recipes[r] == recipes[0]) continue;
    const auto [ours, theirs] = first_difference(recipes[0], recipes[r]);
    const int rank = static_cast<int>(r);
    throw ConfigError(
        error_text("rank " + std::to_string(rank) + " (host " + ranks_->host(rank) + ")", "recipe",
                   ours + ", as on rank 0 (host " + ranks_->host(0) + ")", theirs));
  }
  expect_fitting_size(resolved.recipe.train, size());
}

void RunRanks::agree(std::string_view what, const std::string& value) {
  if (ranks_ != nullptr) ranks_->agree(what, value);
}

std::vector<std::string> RunRanks::gather(std::string_view what, const std::string& text) {
  if (ranks_ == nullptr) return {text};
  constexpr size_t kMaxText = size_t{16} << 20, kMaxAll = size_t{63} << 20;  // of all_gather
  const size_t most = std::min(kMaxText, kMaxAll / static_cast<size_t>(size()));
  return ranks_->all_gather(what, text.size() <= most ? text : std::string());
}

std::string RunRanks::broadcast(std::string_view what, const std::string& text) {
  return ranks_ == nullptr ? text : ranks_->broadcast(what, text);
}

void RunRanks::check() const {
  if (ranks_ != nullptr) ranks_->check();
}

std::unique_ptr<dist::Communicator::Call> RunRanks::waiting(std::string_view call) {
  return ranks_ == nullptr ? nullptr : std::make_unique<dist::Communicator::Call>(*ranks_, call);
}

void RunRanks::at(int64_t step, std::string_view call) {
  if (ranks_ == nullptr) return;
  ranks_->set_step(step);
  ranks_->set_call(call);
}

int RunRanks::most(std::string_view call, int number) {
  if (ranks_ == nullptr) return number;
  int most = number;
  for (const std::string& text : ranks_->all_gather(call, std::to_string(number))) {
    int theirs = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), theirs);
    if (error != std::errc() || end != text.data() + text.size())
      throw FormatError(error_text("message of a rank", call, "a number", "\"" + text + "\""));
    most = std::max(most, theirs);
  }
  return most;
}

void RunRanks::compare_weights(int64_t step, uint64_t checksum) {
  if (ranks_ == nullptr) return;
  const std::vector<std::string> sums = ranks_->all_gather("checksum of weights", hex64(checksum));
  for (size_t r = 1; r < sums.size(); ++r) {
    if (sums[r] == sums[0]) continue;
    const int rank = static_cast<int>(r);
    throw CheckFailedError(
        error_text("rank " + std::to_string(rank) + " (host " + ranks_->host(rank) + ")",
                   "checksum of the weights after step " + std::to_string(step),
                   sums[0] + ", as on rank 0 (host " + ranks_->host(0) + ")",
                   sums[r] + "; the last checkpoint is as it was"));
  }
}

void RunRanks::meet(std::string_view call) {
  if (ranks_ != nullptr) ranks_->all_gather(call, "");
}

StateWriter RunRanks::writer(TrainingStep& step) {
  return [this, &step](StatePart part, const std::function<void(const Tensor&)>& fill) {
    if (ranks_ != nullptr) ranks_->broadcast("state", kPartNames.at(static_cast<size_t>(part)));
    step.write_state(part, fill);
  };
}

std::string RunRanks::share(const std::string& counters) {
  return ranks_ == nullptr ? counters : ranks_->broadcast("state", "= " + counters).substr(2);
}

std::string RunRanks::follow(TrainingStep& step) {
  while (true) {
    const std::string word = ranks_->broadcast("state", "");
    if (word.starts_with("= ")) return word.substr(2);
    const auto* const found = std::find(kPartNames.begin(), kPartNames.end(), word);
    if (found == kPartNames.end())
      throw FormatError(error_text("message of rank 0", "part of the state",
                                   "weights, exp_avg or exp_avg_sq", "\"" + word + "\""));
    step.write_state(static_cast<StatePart>(found - kPartNames.begin()), {});
  }
}

}  // namespace deltatrain::train
