#include "report/run_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/spikes.h"

namespace deltatrain::report {

const char* format_name(RunFormat format) {
  switch (format) {
    case RunFormat::kMetrics:
      return "metrics.jsonl";
    case RunFormat::kMegatron:
      return "Megatron log";
    case RunFormat::kMegatronPrimus:
      return "Megatron log as Primus rewrites it";
    case RunFormat::kMegatronTokens:
      return "Megatron log with tokens per GPU";
    case RunFormat::kTrainerState:
      return "trainer_state.json";
    case RunFormat::kTrainerLog:
      return "trainer_log.jsonl";
    case RunFormat::kTrainerConsole:
      return "console output of Hugging Face's trainer";
  }
  return "";
}

namespace {

// A run is called as its folder, unless the file has a name of its own.
std::string name_of(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  for (const char* const usual :
       {"metrics.jsonl", "log.txt", "trainer_state.json", "trainer_log.jsonl"}) {
    if (name != usual) continue;
    const std::string folder = std::filesystem::absolute(file).parent_path().filename().string();
    return folder.empty() ? name : folder;
  }
  return file.stem().string();
}

void cut(Series& series, int64_t step) {
  while (!series.empty() && series.back().step >= step) series.pop_back();
}

}  // namespace

RunBuilder::RunBuilder(const std::filesystem::path& file, RunFormat format, double divisor) {
  run_.name = name_of(file);
  run_.source = file.string();
  run_.format = format;
  run_.divisor = divisor;
}

void RunBuilder::forget_from(int64_t step) {
  while (!run_.losses.empty() && run_.losses.back().end >= step) run_.losses.pop_back();
  for (Series* series : {&run_.validation, &run_.learning_rate, &run_.gradient_norm,
                         &run_.step_seconds, &run_.tokens_per_second, &run_.utilization,
                         &run_.device_bytes, &run_.host_bytes, &run_.clock_mhz, &run_.power_watts})
    cut(*series, step);
  for (auto& [name, series] : run_.part_seconds) cut(series, step);
  while (!run_.events.empty() && run_.events.back().step >= step) run_.events.pop_back();
  while (!run_.samples.empty() && run_.samples.back().step >= step) run_.samples.pop_back();
}

void RunBuilder::put(Series& series, int64_t step, double value) {
  if (!std::isfinite(value)) return;
  cut(series, step);
  series.push_back({step, value});
}

void RunBuilder::put_loss(int64_t begin, int64_t end, double loss, int64_t counted) {
  loss /= run_.divisor;
  if (!std::isfinite(loss)) {
    loss = std::nan("");
    put_event(end, RunEventKind::kNonFinite);
  }
  run_.losses.push_back({begin, end, loss, counted});
}

void RunBuilder::put_event(int64_t step, RunEventKind kind) {
  for (size_t i = run_.events.size(); i > 0 && run_.events[i - 1].step >= step; --i) {
    if (run_.events[i - 1].step == step && run_.events[i - 1].kind == kind) return;
  }
  run_.events.push_back({step, kind});
}

void RunBuilder::resume_at(int64_t step) {
  forget_from(step);
  resumes_.push_back({step, RunEventKind::kResume});
}

RunRecord RunBuilder::finish() {
  // The rate of a step is the schedule's after the steps before it.
  const Series& rates = run_.learning_rate;
  if (!rates.empty()) {
    const auto most = std::max_element(
        rates.begin(), rates.end(),
        [](const MetricPoint& a, const MetricPoint& b) { return a.value < b.value; });
    run_.warmup_steps = most == rates.begin() ? 0 : std::max<int64_t>(0, most->step - 1);
  }
  SpikeDetector detector;
  for (const LossWindow& window : run_.losses) {
    if (detector.is_spike(window.loss)) run_.events.push_back({window.end, RunEventKind::kSpike});
  }
  if (!resumes_.empty())
    run_.notes.push_back(
        fmt::format("resumed {} time{}, last before step {}: later lines of the "
                    "same steps count",
                    resumes_.size(), resumes_.size() == 1 ? "" : "s", resumes_.back().step));
  run_.events.insert(run_.events.end(), resumes_.begin(), resumes_.end());
  std::stable_sort(run_.events.begin(), run_.events.end(),
                   [](const RunEvent& a, const RunEvent& b) { return a.step < b.step; });
  return std::move(run_);
}

}  // namespace deltatrain::report
