#include "train/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
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

}  // namespace

RunLog::RunLog(RunFolder& folder, const Recipe& recipe, Reporter& reporter)
    : folder_(folder),
      recipe_(recipe),
      reporter_(reporter),
      flops_per_token_(count_flops_per_token(recipe.model, recipe.train.seq_length)) {}

void RunLog::begin(const ResolvedRecipe& resolved, const std::string& command,
                   const std::string& device, int64_t num_parameters, const MemoryPlan& plan,
                   int64_t total_bytes) {
  reporter_.message("train", fmt::format("{:.1f} M parameters on {}",
                                         static_cast<double>(num_parameters) * 1e-6, device));
  reporter_.message(
      "train", fmt::format("memory: {} (weights {}, gradients {}, optimizer {}, activations {}, "
                           "scratch {}; on the host a checkpoint's copy {}, the program {})",
                           size_text(total_bytes), size_text(plan.parameters),
                           size_text(plan.gradients), size_text(plan.optimizer),
                           size_text(plan.saved_activations), size_text(plan.scratch),
                           size_text(plan.checkpoint_copy), size_text(plan.program)));
  folder_.add_metrics(Json{{"kind", "run"},
                           {"time", unix_seconds()},
                           {"command", command},
                           {"version", DELTATRAIN_VERSION},
                           {"commit", DELTATRAIN_COMMIT},
                           {"device", device},
                           {"recipe_digest", resolved.digest()},
                           {"parameters", num_parameters},
                           {"flops_per_token", flops_per_token_},
                           {"memory_bytes", total_bytes},
                           {"train_iters", recipe_.train.train_iters},
                           {"global_batch_size", recipe_.train.global_batch_size},
                           {"seq_length", recipe_.train.seq_length}}
                          .dump());
}

void RunLog::resumed(int64_t step, int64_t consumed_samples, const std::string& checkpoint,
                     const std::vector<std::string>& meaning) {
  reporter_.message(
      "resume", fmt::format("step {} ({} samples) from {}", step, consumed_samples, checkpoint));
  Json line{{"kind", "resume"},
            {"time", unix_seconds()},
            {"step", step},
            {"consumed_samples", consumed_samples},
            {"checkpoint", checkpoint}};
  if (!meaning.empty()) line["meaning"] = meaning;
  folder_.add_metrics(line.dump());
  for (const std::string& text : meaning) folder_.add_log(" resume: " + text);
}

void RunLog::step(const StepReport& report) {
  const int64_t step_tokens = recipe_.train.global_batch_size * recipe_.train.seq_length;
  const double tokens_per_second = static_cast<double>(step_tokens) / report.seconds;
  Json line{{"kind", "step"},
            {"step", report.step},
            {"loss", number(report.loss)},
            {"grad_norm", number(report.gradient_norm)},
            {"lr", report.learning_rate},
            {"tokens", report.consumed_samples * recipe_.train.seq_length},
            {"seconds", report.seconds},
            {"data_seconds", report.data_seconds},
            {"tokens_per_second", tokens_per_second}};
  if (report.skipped) line["skipped"] = true;
  folder_.add_metrics(line.dump());

  ++interval_.steps;
  interval_.seconds += report.seconds;
  interval_.loss += report.skipped ? 0 : report.loss;
  interval_.skipped += report.skipped ? 1 : 0;
  const bool last = report.step == recipe_.train.train_iters;
  if (report.step % recipe_.log.log_interval == 0 || report.step == 1 || last) {
    const auto steps = static_cast<double>(interval_.steps);
    const double rate = static_cast<double>(step_tokens) * steps / interval_.seconds;
    const int64_t good = interval_.steps - interval_.skipped;
    folder_.add_log(
        format_log_line({.iteration = report.step,
                         .total_iterations = recipe_.train.train_iters,
                         .consumed_samples = report.consumed_samples,
                         .milliseconds_per_iteration = 1e3 * interval_.seconds / steps,
                         .tflops_per_device = flops_per_token_ * rate * 1e-12,
                         .learning_rate = report.learning_rate,
                         .global_batch_size = recipe_.train.global_batch_size,
                         .loss = good > 0 ? interval_.loss / static_cast<double>(good) : 0,
                         .gradient_norm = report.gradient_norm,
                         .skipped_iterations = interval_.skipped,
                         .nan_iterations = interval_.skipped},
                        unix_seconds()));
    interval_ = {};
  }
  reporter_.progress(
      "train", report.step, recipe_.train.train_iters, "steps",
      fmt::format("loss {:.4f}  grad {:.3f}  lr {:.2e}  {:.0f} tokens/s", report.loss,
                  report.gradient_norm, report.learning_rate, tokens_per_second));
  if (report.skipped) {
    reporter_.warning("train", fmt::format("step {}: loss {}, gradient norm {}: left out",
                                           report.step, report.loss, report.gradient_norm));
  }
}

void RunLog::validation(int64_t step, double loss, int64_t num_tokens) {
  folder_.add_metrics(
      Json{{"kind", "validation"}, {"step", step}, {"loss", number(loss)}, {"tokens", num_tokens}}
          .dump());
  folder_.add_log(fmt::format(
      " validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", step,
      loss, std::exp(std::min(20.0, loss))));
  reporter_.message("train", fmt::format("step {}: validation loss {:.4f} over {} tokens", step,
                                         loss, num_tokens));
}

void RunLog::saved(const checkpoint::SaveReport& report, double stall_seconds) {
  folder_.add_metrics(Json{
      {"kind", "checkpoint"},
      {"path", report.folder.string()},
      {"bytes", report.bytes},
      {"stall_seconds", stall_seconds},
      {"write_seconds",
       report.seconds}}.dump());
  reporter_.message(
      "checkpoint",
      fmt::format("{}: {} written in {:.2f} s, training waited {:.2f} s", report.folder.string(),
                  size_text(report.bytes), report.seconds, stall_seconds));
}

void RunLog::end(int64_t step, const std::string& verdict) {
  folder_.add_metrics(
      Json{{"kind", "end"}, {"time", unix_seconds()}, {"step", step}, {"verdict", verdict}}.dump());
  folder_.write_verdict(0, Json{{"rank", 0}, {"step", step}, {"verdict", verdict}}.dump());
}

}  // namespace deltatrain::train
