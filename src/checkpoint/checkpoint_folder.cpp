// The checkpoints of a run: names, tracker, search, pruning.

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folders.h"

namespace deltatrain::checkpoint {

namespace {

constexpr std::string_view kPrefix = "iter_";
constexpr std::string_view kTemporarySuffix = ".tmp";

// The number in digits, or absent.
std::optional<int64_t> parse_step(std::string_view digits) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  return step;
}

// The step that a folder's name stands for, written as checkpoint_path writes it.
std::optional<int64_t> step_of(const std::string& name) {
  if (name.rfind(kPrefix, 0) != 0) return std::nullopt;
  const auto step = parse_step(std::string_view(name).substr(kPrefix.size()));
  if (!step || checkpoint_path("", *step).string() != name) return std::nullopt;
  return step;
}

std::vector<std::string> folder_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) names.push_back(it->path().filename().string());
  }
  return names;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step) {
  const std::string digits = std::to_string(step);
  const std::string zeros(digits.size() < 7 ? 7 - digits.size() : 0, '0');
  return folder / (std::string(kPrefix) + zeros + digits);
}

std::vector<int64_t> list_checkpoints(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : folder_names(folder)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<int64_t> tracked_step(const std::filesystem::path& folder) {
  const auto path = folder / internal::kTrackerName;
  if (!is_there(path)) return std::nullopt;
  std::string text = read_file(path, 64);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  const auto step = parse_step(text);
  if (!step) throw FormatError(error_text(path.string(), "", "a step", "\"" + text + "\""));
  return step;
}

std::vector<int64_t> prune_checkpoints(const std::filesystem::path& folder, int64_t keep_last,
                                       int64_t keep_every) {
  for (const std::string& name : folder_names(folder)) {
    if (name.size() > kTemporarySuffix.size() && name.ends_with(kTemporarySuffix) &&
        step_of(name.substr(0, name.size() - kTemporarySuffix.size()))) {
      internal::remove_folder(folder / name);
    }
  }
  const auto tracked = tracked_step(folder);
  if (keep_last <= 0 || !tracked) return {};
  std::vector<int64_t> steps = list_checkpoints(folder);
  steps.resize(steps.size() - std::min(steps.size(), static_cast<size_t>(keep_last)));
  std::vector<int64_t> removed;
  for (const int64_t step : steps) {
    if (step == *tracked || (keep_every > 0 && step % keep_every == 0)) continue;
    // Renamed first: a checkpoint that is half removed must not look like one.
    std::filesystem::path temporary = checkpoint_path(folder, step);
    temporary += kTemporarySuffix;
    internal::rename_folder(checkpoint_path(folder, step), temporary);
    internal::remove_folder(temporary);
    removed.push_back(step);
  }
  return removed;
}

std::filesystem::path find_checkpoint(const std::filesystem::path& path) {
  if (!is_there(path))
    throw FormatError(error_text(path.string(), "", "a checkpoint", "no such folder"));
  if (is_there(path / internal::kStateName)) return path;
  for (const std::filesystem::path& folder : {path, path / "checkpoints"}) {
    const auto step = tracked_step(folder);
    if (!step) continue;
    std::filesystem::path named = checkpoint_path(folder, *step);
    if (is_there(named / internal::kStateName)) return named;
    throw FormatError(error_text((folder / internal::kTrackerName).string(), "",
                                 named.filename().string() + " with state.json in it, as it says",
                                 is_there(named) ? "a folder without one" : "no such folder"));
  }
  throw FormatError(
      error_text(path.string(), "",
                 "a checkpoint: state.json, latest_checkpointed_iteration.txt or checkpoints/",
                 "none of them"));
}

bool is_native_checkpoint(const std::filesystem::path& path) {
  if (is_there(path / internal::kStateName)) return true;
  for (const std::filesystem::path& folder : {path, path / "checkpoints"}) {
    if (!is_there(folder / internal::kTrackerName)) continue;
    for (const int64_t step : list_checkpoints(folder)) {
      if (is_there(checkpoint_path(folder, step) / internal::kStateName)) return true;
    }
  }
  return false;
}

std::optional<std::filesystem::path> newest_whole_checkpoint(const std::filesystem::path& folder,
                                                             std::vector<std::string>* problems) {
  const std::filesystem::path of_run = folder / "checkpoints";
  const std::filesystem::path& searched = is_there(of_run) ? of_run : folder;
  std::vector<int64_t> steps = list_checkpoints(searched);
  std::reverse(steps.begin(), steps.end());
  for (const int64_t step : steps) {
    std::filesystem::path path = checkpoint_path(searched, step);
    try {
      CheckpointReader(path).verify_checksums();
      return path;
    } catch (const Error& error) {
      if (problems != nullptr) problems->emplace_back(error.what());
    }
  }
  return std::nullopt;
}

}  // namespace deltatrain::checkpoint
