#include "train/run_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/size_text.h"
#include "train/log_line.h"

namespace deltatrain::train {

using Json = nlohmann::ordered_json;

namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// JSON has no NaN: what is not a number is null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// One line; bytes of names and commands that are no UTF-8 are replaced.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// For people: without line ends and what else would move a terminal's cursor.
std::string printable(const std::string& text) {
  std::string result = text;
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return result;
}

// Memory of this process that lies in the machine's; 0 where the system does not tell.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return file ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

class RunLog::Timed {
 public:
  explicit Timed(RunLog& log) : log_(log), begin_(std::chrono::steady_clock::now()) {}
  ~Timed() {
    log_.logging_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  RunLog& log_;
  std::chrono::steady_clock::time_point begin_;
};

std::string program_version() { return DELTATRAIN_VERSION " " DELTATRAIN_COMMIT; }

RunLog::RunLog(RunFolder& folder, const Recipe& recipe, Reporter& reporter)
    : folder_(folder),
      recipe_(recipe),
      reporter_(reporter),
      flops_per_token_(count_flops_per_token(recipe.model, recipe.train.seq_length)) {}

void RunLog::begin(const ResolvedRecipe& resolved, const std::string& command,
                   const RunDevice& device, int64_t num_parameters, const MemoryPlan& plan,
                   int64_t total_bytes) {
  device_ = device;
  gpu_ = open_gpu_monitor(device.pci_bus_id);
  reporter_.message(
      "train", fmt::format("{:.1f} M parameters on {}", static_cast<double>(num_parameters) * 1e-6,
                           device.description));
  reporter_.message(
      "train", fmt::format("memory: {} (weights {}, gradients {}, optimizer {}, activations {}, "
                           "scratch {}; on the host a checkpoint's copy {}, the program {})",
                           size_text(total_bytes), size_text(plan.parameters),
                           size_text(plan.gradients), size_text(plan.optimizer),
                           size_text(plan.saved_activations), size_text(plan.scratch),
                           size_text(plan.checkpoint_copy), size_text(plan.program)));
  folder_.add_metrics(
      line_of(Json{{"kind", "run"},
                   {"time", unix_seconds()},
                   {"command", command},
                   {"version", DELTATRAIN_VERSION},
                   {"commit", DELTATRAIN_COMMIT},
                   {"device", device.description},
                   {"ranks", device.num_ranks},
                   {"recipe_digest", resolved.digest()},
                   {"parameters", num_parameters},
                   {"flops_per_token", flops_per_token_},
                   {"peak_flops", device.peak_flops ? Json(*device.peak_flops) : Json()},
                   {"memory_bytes", total_bytes},
                   {"train_iters", recipe_.train.train_iters},
                   {"global_batch_size", recipe_.train.global_batch_size},
                   {"seq_length", recipe_.train.seq_length}}));
  folder_.add_log(fmt::format(
      " lm loss: mean over the {} iteration{} up to a line, skipped ones left out; the first line "
      "of "
      "a process is of its first iteration, which stays in the next mean. learning rate: the next "
      "iteration's. TFLOP/s: model FLOPs",
      recipe_.log.log_interval, recipe_.log.log_interval == 1 ? "" : "s"));
}

formats::EventFile* RunLog::events(double now) {
  if (!has_events_) {
    has_events_ = true;
    events_ = formats::make_event_file(folder_.path() / "tensorboard", now, first_step_);
  }
  return events_.get();
}

void RunLog::resumed(const ResumeReport& report) {
  first_step_ = report.step + 1;
  reporter_.message("resume", fmt::format("step {} ({} samples) from {}", report.step,
                                          report.consumed_samples, report.checkpoint));
  Json line{{"kind", "resume"},
            {"time", unix_seconds()},
            {"step", report.step},
            {"consumed_samples", report.consumed_samples},
            {"checkpoint", report.checkpoint},
            {"read_bytes", report.read_bytes},
            {"read_seconds", report.read_seconds}};
  if (!report.meaning.empty()) line["meaning"] = report.meaning;
  folder_.add_metrics(line_of(line));
  for (const std::string& text : report.meaning) folder_.add_log(" resume: " + text);
}

void RunLog::step(const StepReport& report) {
  const Timed timed(*this);
  step_seconds_ += report.seconds;
  const int64_t step_tokens = recipe_.train.global_batch_size * recipe_.train.seq_length;
  const double tokens_per_second = static_cast<double>(step_tokens) / report.seconds;
  const double flops = flops_per_token_ * tokens_per_second / device_.num_ranks;
  const bool spike = spikes_.is_spike(report.skipped ? std::nan("") : report.loss);
  Json line{{"kind", "step"},
            {"step", report.step},
            {"loss", number(report.loss)},
            {"grad_norm", number(report.gradient_norm)},
            {"lr", report.learning_rate},
            {"tokens", report.consumed_samples * recipe_.train.seq_length},
            {"seconds", report.seconds},
            {"data_seconds", report.data_seconds},
            {"tokens_per_second", tokens_per_second},
            {"tflops", flops * 1e-12}};
  if (device_.peak_flops) line["mfu"] = flops / *device_.peak_flops;
  if (!report.part_seconds.empty()) {
    Json& parts = line["parts"] = Json::object();
    for (const auto& [part, seconds] : report.part_seconds) parts[part] = seconds;
  }
  if (spike) line["spike"] = true;
  if (report.skipped) line["skipped"] = true;
  folder_.add_metrics(line_of(line));

  const double now = unix_seconds();
  if (formats::EventFile* const file = events(now)) {
    std::vector<formats::EventScalar> scalars;
    const auto add = [&](std::string tag, double value) {
      if (std::isfinite(value)) scalars.push_back({std::move(tag), value});
    };
    add("train/loss", report.skipped ? std::nan("") : report.loss);
    add("train/grad_norm", report.gradient_norm);
    add("train/lr", report.learning_rate);
    add("throughput/tokens_per_second", tokens_per_second);
    add("throughput/tflops_per_device", flops * 1e-12);
    if (device_.peak_flops) add("throughput/mfu", flops / *device_.peak_flops);
    add("seconds/step", report.seconds);
    for (const auto& [part, seconds] : report.part_seconds) add("seconds/" + part, seconds);
    file->add(report.step, now, scalars);
    file->flush();
  }

  ++interval_.steps;
  ++interval_.timed_steps;
  interval_.seconds += report.seconds;
  interval_.loss += report.skipped ? 0 : report.loss;
  interval_.skipped += report.skipped ? 1 : 0;
  const bool due = report.step % recipe_.log.log_interval == 0;
  if (due || !has_logged_ || report.step == recipe_.train.train_iters) {
    add_line(report);
    interval_.seconds = 0;
    interval_.timed_steps = 0;
    if (due) interval_ = {};
    has_logged_ = true;
    add_resources(report.step);
  }
  std::string detail =
      fmt::format("loss {:.4f}  grad {:.3f}  lr {:.2e}  {:.0f} tokens/s", report.loss,
                  report.gradient_norm, report.learning_rate, tokens_per_second);
  if (device_.peak_flops)
    detail += fmt::format("  {:.1f} % of peak", 100 * flops / *device_.peak_flops);
  reporter_.progress("train", report.step, recipe_.train.train_iters, "steps", detail);
  if (report.skipped) {
    const std::string text =
        fmt::format("loss {}, gradient norm {}: left out", report.loss, report.gradient_norm);
    folder_.add_log(fmt::format(" iteration {}: {}", report.step, text));
    reporter_.warning("train", fmt::format("step {}: {}", report.step, text));
  }
  if (spike) {
    const std::string text =
        fmt::format("loss {:.4f} is a spike, {:.4f} the mean of the {} before", report.loss,
                    spikes_.mean(), report::SpikeDetector::kWindow);
    folder_.add_log(fmt::format(" iteration {}: {}", report.step, text));
    reporter_.warning("train", fmt::format("step {}: {}", report.step, text));
  }
}

void RunLog::add_line(const StepReport& report) {
  const int64_t step_tokens = recipe_.train.global_batch_size * recipe_.train.seq_length;
  const double seconds = interval_.seconds / static_cast<double>(interval_.timed_steps);
  const double rate = static_cast<double>(step_tokens) / seconds;
  const int64_t good = interval_.steps - interval_.skipped;
  folder_.add_log(
      format_log_line({.iteration = report.step,
                       .total_iterations = recipe_.train.train_iters,
                       .consumed_samples = report.consumed_samples,
                       .milliseconds_per_iteration = 1e3 * seconds,
                       .tflops_per_device = flops_per_token_ * rate * 1e-12 / device_.num_ranks,
                       .learning_rate = report.next_learning_rate,
                       .global_batch_size = recipe_.train.global_batch_size,
                       .loss = good > 0 ? interval_.loss / static_cast<double>(good) : 0,
                       .gradient_norm = report.gradient_norm,
                       .skipped_iterations = interval_.skipped,
                       .nan_iterations = interval_.skipped},
                      unix_seconds()));
}

void RunLog::add_resources(int64_t step) {
  // Asking a card's driver takes up to some milliseconds.
  const auto now = std::chrono::steady_clock::now();
  if (now - resources_read_ < std::chrono::seconds(2)) return;
  resources_read_ = now;
  Json line{{"kind", "resources"}, {"step", step}, {"host_bytes", resident_bytes()}};
  if (gpu_ != nullptr) {
    const GpuReading reading = gpu_->read();
    const auto add = [&](const char* name, const std::optional<double>& value) {
      if (value) line[name] = *value;
    };
    add("device_bytes", reading.used_bytes);
    add("clock_mhz", reading.clock_mhz);
    add("power_watts", reading.power_watts);
    add("temperature_celsius", reading.temperature_celsius);
  }
  folder_.add_metrics(line_of(line));
}

void RunLog::validation(int64_t step, double loss, int64_t num_tokens, double seconds) {
  const Timed timed(*this);
  folder_.add_metrics(line_of(Json{{"kind", "validation"},
                                   {"step", step},
                                   {"loss", number(loss)},
                                   {"tokens", num_tokens},
                                   {"seconds", seconds}}));
  const double now = unix_seconds();
  if (formats::EventFile* const file = events(now); file != nullptr && std::isfinite(loss)) {
    const formats::EventScalar scalars[] = {{"validation/loss", loss},
                                            {"seconds/validation", seconds}};
    file->add(step, now, scalars);
    file->flush();
  }
  folder_.add_log(fmt::format(
      " validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", step,
      loss, std::exp(std::min(20.0, loss))));
  reporter_.message("train", fmt::format("step {}: validation loss {:.4f} over {} tokens", step,
                                         loss, num_tokens));
}

void RunLog::sample(int64_t step, const std::string& prompt, const std::string& text,
                    double seconds) {
  const Timed timed(*this);
  folder_.add_metrics(line_of(Json{{"kind", "sample"},
                                   {"step", step},
                                   {"prompt", prompt},
                                   {"text", text},
                                   {"seconds", seconds}}));
  reporter_.message("train", fmt::format("step {}: {}", step, printable(prompt + text)));
}

void RunLog::saved(const Saver::Finished& save) {
  const checkpoint::SaveReport& report = save.report;
  folder_.add_metrics(line_of(Json{{"kind", "checkpoint"},
                                   {"path", report.folder.string()},
                                   {"bytes", report.bytes},
                                   {"stall_seconds", save.stall_seconds},
                                   {"previous_save_seconds", save.previous_save_seconds},
                                   {"copy_seconds", save.copy_seconds},
                                   {"write_seconds", report.seconds}}));
  std::string text =
      fmt::format("{}: {} copied in {:.2f} s and written in {:.2f} s, training waited {:.2f} s",
                  report.folder.string(), size_text(report.bytes), save.copy_seconds,
                  report.seconds, save.stall_seconds);
  if (save.previous_save_seconds >= 0.005) {
    text += fmt::format(
        ", {:.2f} s of it for the save before to be written (a larger checkpoint.save_interval "
        "leaves it the time)",
        save.previous_save_seconds);
  }
  reporter_.message("checkpoint", text);
  if (!save.note.empty())
    reporter_.warning("checkpoint", "copied before the next step, not beside it: " + save.note);
}

void RunLog::end(int64_t step, const std::string& verdict) {
  folder_.add_metrics(line_of(Json{{"kind", "end"},
                                   {"time", unix_seconds()},
                                   {"step", step},
                                   {"verdict", verdict},
                                   {"step_seconds", step_seconds_},
                                   {"logging_seconds", logging_seconds_}}));
}

}  // namespace deltatrain::train
