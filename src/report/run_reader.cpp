#include "report/run_reader.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/files.h"
#include "report/json_text.h"
#include "report/megatron_log.h"
#include "report/run_builder.h"
#include "report/trainer_log.h"

namespace deltatrain::report {

namespace {

namespace fs = std::filesystem;

std::string_view take_line(std::string_view& text) {
  const size_t newline = text.find('\n');
  const std::string_view line = text.substr(0, newline);
  text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  return line;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

class MetricsReader {
 public:
  MetricsReader(const fs::path& file, double divisor)
      : builder_(file, RunFormat::kMetrics, divisor) {}

  RunRecord read(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      const std::string_view line = take_line(text);
      if (is_blank(line)) continue;
      const nlohmann::json entry = parse_json(line);
      if (!entry.is_object()) {
        ++run().ignored_lines;
        continue;
      }
      take(entry);
    }
    if (sessions_ > 0 && ends_ == sessions_) run().wall_seconds = wall_;
    if (!run().wall_seconds && step_seconds_ > 0) {
      run().wall_seconds = step_seconds_;
      run().notes.emplace_back(
          "wall time: the sum of the steps, since a process did not end in order");
    }
    return builder_.finish();
  }

 private:
  RunRecord& run() { return builder_.run(); }

  int64_t step_of(const nlohmann::json& entry) const {
    const auto step = find_step(entry, "step");
    if (!step)
      throw FormatError(error_text(run_source(), "step", "a whole number >= 0", "something else"));
    return *step;
  }
  std::string run_source() const { return source_ + ":" + std::to_string(line_); }

  void take(const nlohmann::json& entry) {
    const auto kind = entry.find("kind");
    if (kind == entry.end() || !kind->is_string())
      throw FormatError(error_text(run_source(), "kind", "a text", "none"));
    const std::string& name = kind->get_ref<const std::string&>();
    if (name == "step") {
      take_step(entry);
    } else if (name == "validation") {
      const auto loss = find_number(entry, "loss");
      if (!loss) throw FormatError(error_text(run_source(), "loss", "a number or null", "none"));
      RunBuilder::put(run().validation, step_of(entry), *loss / builder_.divisor());
      put_part(entry, step_of(entry), "validation", "seconds");
    } else if (name == "run") {
      ++sessions_;
      began_ = find_number(entry, "time").value_or(std::nan(""));
      if (const auto total = find_step(entry, "train_iters")) run().total_steps = total;
      num_devices_ = std::max<int64_t>(1, find_step(entry, "ranks").value_or(1));
    } else if (name == "resume") {
      const auto step = find_step(entry, "step");
      if (step) builder_.resume_at(*step + 1);
    } else if (name == "checkpoint") {
      put_part(entry, last_, "save", "stall_seconds");
    } else if (name == "resources") {
      take_resources(entry, step_of(entry));
    } else if (name == "sample") {
      run().samples.push_back(
          {step_of(entry), find_text(entry, "prompt"), find_text(entry, "text")});
    } else if (name == "end") {
      const double seconds = find_number(entry, "time").value_or(std::nan("")) - began_;
      if (std::isfinite(seconds) && seconds >= 0) {
        wall_ += seconds;
        ++ends_;
      }
    }
  }

  void take_step(const nlohmann::json& entry) {
    const int64_t step = step_of(entry);
    const auto loss = find_number(entry, "loss");
    if (!loss) throw FormatError(error_text(run_source(), "loss", "a number or null", "none"));
    if (step == 0) throw FormatError(error_text(run_source(), "step", "a whole number >= 1", "0"));
    if (!run().losses.empty() && step <= run().losses.back().end) builder_.forget_from(step);
    const bool skipped = entry.contains("skipped");
    const bool counts = std::isfinite(*loss) && !skipped;
    builder_.put_loss(step - 1, step, counts ? *loss : std::nan(""), counts ? 1 : 0);
    if (skipped) builder_.put_event(step, RunEventKind::kSkipped);
    last_ = step;
    const auto put = [&](Series& series, const char* key, double factor) {
      RunBuilder::put(series, step, find_number(entry, key).value_or(std::nan("")) * factor);
    };
    put(run().learning_rate, "lr", 1);
    put(run().gradient_norm, "grad_norm", 1);
    put(run().step_seconds, "seconds", 1);
    put(run().tokens_per_second, "tokens_per_second", 1 / static_cast<double>(num_devices_));
    put(run().utilization, "mfu", 1);
    const double seconds = find_number(entry, "seconds").value_or(0);
    if (std::isfinite(seconds)) step_seconds_ += seconds;
    const auto parts = entry.find("parts");
    if (parts == entry.end() || !parts->is_object()) return;
    for (const auto& part : parts->items()) put_part(*parts, step, part.key(), part.key().c_str());
  }

  void put_part(const nlohmann::json& entry, int64_t step, const std::string& part,
                const char* key) {
    constexpr size_t kMostParts = 32;
    const auto seconds = find_number(entry, key);
    if (!seconds) return;
    if (!run().part_seconds.contains(part) && run().part_seconds.size() >= kMostParts) return;
    RunBuilder::put(run().part_seconds[part], step, *seconds);
  }

  void take_resources(const nlohmann::json& entry, int64_t step) {
    const auto put = [&](Series& series, const char* key) {
      RunBuilder::put(series, step, find_number(entry, key).value_or(std::nan("")));
    };
    put(run().device_bytes, "device_bytes");
    put(run().host_bytes, "host_bytes");
    put(run().clock_mhz, "clock_mhz");
    put(run().power_watts, "power_watts");
  }

  RunBuilder builder_;
  std::string source_ = builder_.run().source;
  int64_t line_ = 0;
  int64_t last_ = 0;
  int64_t num_devices_ = 1;
  int64_t sessions_ = 0, ends_ = 0;
  double began_ = std::nan("");
  double wall_ = 0, step_seconds_ = 0;
};

// The kind of the first lines that are JSON objects: none where there is no such line.
enum class LineKind : uint8_t { kNone, kMetrics, kTrainerLog };
LineKind kind_of_lines(std::string_view text) {
  constexpr int kMostLines = 64;
  for (int i = 0; i < kMostLines && !text.empty(); ++i) {
    const std::string_view line = take_line(text);
    if (is_blank(line) || line[line.find_first_not_of(" \t\r")] != '{') continue;
    const nlohmann::json entry = parse_json(line);
    if (!entry.is_object()) continue;
    if (entry.contains("kind")) return LineKind::kMetrics;
    if (entry.contains("current_steps")) return LineKind::kTrainerLog;
  }
  return LineKind::kNone;
}

// The file of a folder that holds the run's log; empty where there is none.
fs::path find_log(const fs::path& folder) {
  std::error_code error;
  for (const char* const name : {"metrics.jsonl", "trainer_log.jsonl", "trainer_state.json"}) {
    if (fs::exists(folder / name, error)) return folder / name;
  }
  fs::path found;
  int64_t last = -1;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    constexpr std::string_view kPrefix = "checkpoint-";
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + 15 ||
        name.find_first_not_of("0123456789", kPrefix.size()) != std::string::npos ||
        name.size() == kPrefix.size() || !fs::exists(it->path() / "trainer_state.json", error))
      continue;
    const int64_t step = std::stoll(name.substr(kPrefix.size()));
    if (step > last) {
      last = step;
      found = it->path() / "trainer_state.json";
    }
  }
  return found;
}

}  // namespace

bool looks_like_run(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return !find_log(path).empty();
  if (!fs::is_regular_file(path, error)) return false;
  const std::string content = read_file(path);
  const std::string_view text = content;
  if (kind_of_lines(text) != LineKind::kNone) return true;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{') return true;
  const nlohmann::json whole = parse_json(text);
  return !whole.is_object() || whole.contains("log_history");
}

RunRecord read_run(const fs::path& path, const RunReaderOptions& options) {
  fs::path log = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    log = find_log(path);
    if (log.empty())
      throw FormatError(error_text(path.string(), "folder",
                                   "metrics.jsonl, trainer_state.json or trainer_log.jsonl in it",
                                   "none"));
  }
  if (fs::exists(log, error) && !fs::is_regular_file(log, error))
    throw FormatError(error_text(log.string(), "log of a run", "a file", "something else"));
  const std::string content = read_file(log);  // not a map: a running process may truncate it
  const std::string_view text = content;
  const double ours = options.divisor > 0 ? options.divisor : 1;
  double trainers = options.divisor > 0 ? options.divisor : options.trainer_divisor;
  const bool unknown_divisor = !(trainers > 0);
  if (unknown_divisor) trainers = 1;
  std::optional<RunRecord> run;
  const LineKind lines = kind_of_lines(text);
  if (lines == LineKind::kMetrics) return MetricsReader(log, ours).read(text);
  if (lines == LineKind::kTrainerLog) run = read_trainer_log(log, text, trainers);
  if (!run) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos && text[first] == '{')
      run = read_trainer_state(log, text, trainers);
  }
  if (!run) {
    run = read_megatron_log(log, text, ours, options.tokens_per_step_and_device);
    if (run) return *run;
  }
  if (!run)
    run = read_trainer_console(log, text, trainers, std::max<int64_t>(1, options.logging_steps));
  if (!run) {
    throw FormatError(error_text(
        log.string(), "log of a run",
        "metrics.jsonl, Megatron's lines, trainer_state.json, trainer_log.jsonl or the trainer's "
        "console output",
        text.empty() ? "an empty file" : "something else"));
  }
  if (unknown_divisor)
    run->notes.emplace_back(
        "losses as logged (divisor 1): a trainer over several processes may "
        "log their sum, see --divisor");
  const double tokens = options.tokens_per_step_and_device;
  if (tokens > 0) {
    for (const MetricPoint& point : run->step_seconds) {
      if (point.value > 0)
        RunBuilder::put(run->tokens_per_second, point.step, tokens / point.value);
    }
  }
  return *run;
}

}  // namespace deltatrain::report
