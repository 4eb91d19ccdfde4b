#include "report/trainer_log.h"

#include <charconv>
#include <cmath>
#include <string>

#include "report/json_text.h"
#include "report/run_builder.h"

namespace deltatrain::report {

namespace {

// Events in the order of the log.
class TrainerEvents {
 public:
  TrainerEvents(const std::filesystem::path& file, RunFormat format, double divisor)
      : builder_(file, format, divisor) {}

  // An event with the trainer's names: loss or eval_loss, learning_rate, grad_norm.
  void add(int64_t step, const nlohmann::json& entry) {
    ++num_events_;
    RunRecord& run = builder_.run();
    const auto loss = find_number(entry, "loss"), eval_loss = find_number(entry, "eval_loss");
    if (eval_loss) RunBuilder::put(run.validation, step, *eval_loss);
    if (!loss || step == 0) return;
    if (step <= last_) {
      builder_.resume_at(step);
      last_ = run.losses.empty() ? step - 1 : run.losses.back().end;
    }
    builder_.put_loss(last_, step, *loss, step - last_);
    last_ = step;
    // The rate is printed after the schedule has gone on: the next step uses it.
    if (const auto rate = find_number(entry, "learning_rate"))
      RunBuilder::put(run.learning_rate, step + 1, *rate);
    if (const auto norm = find_number(entry, "grad_norm"))
      RunBuilder::put(run.gradient_norm, step, *norm);
  }

  RunBuilder& builder() { return builder_; }
  int64_t num_events() const { return num_events_; }
  int64_t last_step() const { return last_; }

 private:
  RunBuilder builder_;
  int64_t last_ = 0;
  int64_t num_events_ = 0;
};

// What the trainer says once at the end.
void take_totals(RunBuilder& builder, const nlohmann::json& entry) {
  RunRecord& run = builder.run();
  const auto runtime = find_number(entry, "train_runtime");
  if (runtime && std::isfinite(*runtime) && *runtime > 0) run.wall_seconds = runtime;
}

// Seconds of "1:53:52" or "2 days, 1:02:03"; none for other texts.
std::optional<double> parse_clock(std::string_view text) {
  double seconds = 0;
  const size_t days_end = text.find(" day");
  const auto number = [](std::string_view& rest) -> std::optional<double> {
    double value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || !(value >= 0 && value < 1e9)) return {};
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return value;
  };
  if (days_end != std::string_view::npos) {
    const auto days = number(text);
    const size_t comma = text.find(", ");
    if (!days || comma == std::string_view::npos) return {};
    seconds = *days * 86400;
    text.remove_prefix(comma + 2);
  }
  double clock = 0;
  for (int part = 0; part < 3; ++part) {
    const auto value = number(text);
    if (!value) return {};
    clock = clock * 60 + *value;
    if (text.empty()) return part == 0 ? std::optional<double>() : seconds + clock;
    if (text.front() != ':') return {};
    text.remove_prefix(1);
  }
  return {};
}

}  // namespace

std::optional<RunRecord> read_trainer_state(const std::filesystem::path& file,
                                            std::string_view text, double divisor) {
  const nlohmann::json state = parse_json(text);
  if (!state.is_object() || !state.contains("log_history") || !state.at("log_history").is_array())
    return {};
  TrainerEvents events(file, RunFormat::kTrainerState, divisor);
  for (const nlohmann::json& entry : state.at("log_history")) {
    const auto step = entry.is_object() ? find_step(entry, "step") : std::nullopt;
    if (!step) {
      ++events.builder().run().ignored_lines;
      continue;
    }
    events.add(*step, entry);
    take_totals(events.builder(), entry);
  }
  RunRecord& run = events.builder().run();
  run.total_steps = find_step(state, "max_steps");
  if (run.wall_seconds && events.last_step() > 0) {
    RunBuilder::put(run.step_seconds, events.last_step(),
                    *run.wall_seconds / static_cast<double>(events.last_step()));
    run.notes.emplace_back("ms per step: the mean of the whole run");
  }
  return events.builder().finish();
}

std::optional<RunRecord> read_trainer_log(const std::filesystem::path& file, std::string_view text,
                                          double divisor) {
  TrainerEvents events(file, RunFormat::kTrainerLog, divisor);
  RunRecord& run = events.builder().run();
  double last_elapsed = 0;
  int64_t last_step = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json entry = parse_json(line);
    const auto step = entry.is_object() ? find_step(entry, "current_steps") : std::nullopt;
    if (!step) {
      ++run.ignored_lines;
      continue;
    }
    events.add(*step, entry);
    if (const auto total = find_step(entry, "total_steps")) run.total_steps = total;
    const auto elapsed = parse_clock(find_text(entry, "elapsed_time"));
    if (!elapsed || !entry.contains("loss")) continue;
    if (*step > last_step && *elapsed > last_elapsed)
      RunBuilder::put(run.step_seconds, *step,
                      (*elapsed - last_elapsed) / static_cast<double>(*step - last_step));
    last_elapsed = *elapsed;
    last_step = *step;
    run.wall_seconds = elapsed;
  }
  if (events.num_events() == 0) return {};
  return events.builder().finish();
}

std::optional<RunRecord> read_trainer_console(const std::filesystem::path& file,
                                              std::string_view text, double divisor,
                                              int64_t logging_steps) {
  constexpr size_t kLongestEntry = 4096;
  TrainerEvents events(file, RunFormat::kTrainerConsole, divisor);
  int64_t losses = 0;
  for (size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
    const size_t end = text.substr(at, kLongestEntry).find('}');
    if (end == std::string_view::npos) continue;
    // A flat dictionary of Python's: names in single quotes, nan for what is not a number.
    std::string entry_text(text.substr(at, end + 1));
    if (entry_text.find("'loss'") == std::string::npos &&
        entry_text.find("'eval_loss'") == std::string::npos &&
        entry_text.find("'train_runtime'") == std::string::npos)
      continue;
    for (char& c : entry_text) c = c == '\'' ? '"' : c;
    for (const char* const word : {": nan", ": inf", ": -inf"}) {
      for (size_t i = entry_text.find(word); i != std::string::npos; i = entry_text.find(word))
        entry_text.replace(i, std::string_view(word).size(), ": null");
    }
    const nlohmann::json entry = nlohmann::json::parse(entry_text, nullptr, false);
    if (!entry.is_object()) {
      ++events.builder().run().ignored_lines;
      continue;
    }
    take_totals(events.builder(), entry);
    if (entry.contains("loss")) {
      if (++losses > kLargestStep / logging_steps) break;
      events.add(losses * logging_steps, entry);
    } else {
      events.add(losses * logging_steps, entry);
    }
  }
  if (losses == 0) return {};
  RunRecord& run = events.builder().run();
  run.notes.push_back("steps counted as " + std::to_string(logging_steps) +
                      " per line: the log does not name them");
  if (run.wall_seconds && events.last_step() > 0)
    RunBuilder::put(run.step_seconds, events.last_step(),
                    *run.wall_seconds / static_cast<double>(events.last_step()));
  return events.builder().finish();
}

}  // namespace deltatrain::report
