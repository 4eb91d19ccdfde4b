#include "train/starting_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_matching.h"
#include "convert/megatron_source.h"
#include "formats/element_cast.h"
#include "optim/schedule.h"

namespace deltatrain::train {

namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

void check_whole(const std::filesystem::path& path) {
  if (checkpoint::is_native_checkpoint(path)) {
    checkpoint::CheckpointReader(path).verify_checksums();
    return;
  }
  const auto file = convert::find_megatron_checkpoint(path);
  if (!file)
    throw FormatError(
        error_text(path.string(), "", "state.json or mp_rank_00/model_optim_rng.pt", "neither"));
  convert::verify_megatron_checksums(*file);
}

void copy_in(const Context& context, const Tensor& flat, int64_t element,
             std::span<const float> values) {
  const int64_t width = dtype_bytes(flat.dtype());
  const auto count = static_cast<int64_t>(values.size());
  char* to = static_cast<char*>(flat.raw()) + element * width;
  if (flat.dtype() == DType::kF32) {
    context.device->copy_to_device(to, values.data(), static_cast<size_t>(count * width));
    return;
  }
  std::vector<std::byte> cast(static_cast<size_t>(count * width));
  formats::cast_elements(DType::kF32, values.data(), flat.dtype(), cast.data(), count);
  context.device->copy_to_device(to, cast.data(), cast.size());
}

void require_same_tensors(const convert::WeightSource& source, TrainingStep& step) {
  checkpoint::TensorDifferences differences = source.differences();
  if (differences.none()) {
    std::vector<formats::TensorSpec> wanted;
    for (const layers::ParameterInfo& info : step.parameters().infos())
      wanted.push_back({info.name, DType::kF32, info.checkpoint_shape});
    differences =
        checkpoint::compare_tensors(wanted, source.tensors(), checkpoint::DTypeRule::kFloating);
  }
  if (!differences.none())
    throw FormatError(error_text(source.folder().string(), "", "the tensors of the recipe's model",
                                 differences.summary()));
}

// Returns the bytes read.
int64_t read_parameters(const convert::WeightSource& source, bool moments, TrainingStep& step,
                        const StateWriter& write) {
  const Context& context = step.context();
  std::vector<std::string> names;
  std::map<std::string, int64_t> offsets, widths;  // widths: of a stored element, in bytes
  for (const layers::ParameterInfo& info : step.parameters().infos()) {
    names.push_back(info.name);
    offsets[info.name] = info.offset;
  }
  for (const formats::TensorSpec& spec : source.tensors())
    widths[spec.name] = dtype_bytes(source.has_optimizer() ? DType::kF32 : spec.dtype);
  int64_t bytes = 0;
  const auto read = [&](StatePart part, convert::StatePart stored) {
    write(part, [&](const Tensor& flat) {
      source.stream(stored, names,
                    [&](const std::string& name, int64_t begin, std::span<const float> values) {
                      copy_in(context, flat, offsets.at(name) + begin, values);
                      bytes += static_cast<int64_t>(values.size()) * widths.at(name);
                    });
    });
  };
  read(StatePart::kWeights, convert::StatePart::kMaster);
  if (!moments) return bytes;
  read(StatePart::kExpAvg, convert::StatePart::kExpAvg);
  read(StatePart::kExpAvgSq, convert::StatePart::kExpAvgSq);
  return bytes;
}

// Where the data go on, in samples.
int64_t consumed(const convert::TrainingCounters& counters, const std::filesystem::path& path) {
  if (counters.consumed_samples) return *counters.consumed_samples;
  if (counters.iteration == 0) return 0;
  throw FormatError(error_text(path.string(), "consumed samples",
                               "a number in args or the scheduler",
                               "neither; checkpoint.finetune: true starts the data anew"));
}

// Adds to point.log what its counters mean: where the data go on, the optimizer's state, the
// learning rate, and how the global batch differs from the one before.
void tell_continuation(const Recipe& recipe, const LoadChoice& choice,
                       std::optional<int64_t> batch_before, StartingPoint& point) {
  point.log.push_back(fmt::format("iteration {}: data go on behind sample {}", point.iteration,
                                  point.consumed_samples));
  if (point.completed_steps > 0)
    point.log.push_back(
        fmt::format("optimizer: weights, moments and {} updates as stored", point.completed_steps));
  point.log.push_back(fmt::format(
      "learning rate: the recipe's schedule, not the checkpoint's, after {} steps: {:.3e}",
      point.completed_steps,
      optim::learning_rate(recipe.optimizer, recipe.schedule, recipe.train.train_iters,
                           point.completed_steps)));
  const int64_t batch = recipe.train.global_batch_size;
  if (batch_before && *batch_before != batch) {
    point.log.push_back(fmt::format(
        "global batch: {} samples from here on, {} before; the data position counts samples, the "
        "schedule steps",
        batch, *batch_before));
  }
  point.log.push_back(
      std::string(
          "random numbers: from train.seed and the step; there is no state of theirs to load") +
      (choice.no_load_rng ? ", so no_load_rng changes nothing" : ""));
}

// Of a native checkpoint, whether `train` saved it for a state like this one, with all that a run
// goes on from. Others, converted ones, are taken over by what they hold.
bool is_of_a_run(const checkpoint::CheckpointReader& reader, TrainingStep& step) {
  const auto& extra = reader.state().extra;
  return extra.contains("recipe") && extra.contains("completed_steps") &&
         !reader.optimizer().empty() && !reader.model().empty() &&
         reader.model().front().dtype == step.parameters().flat_gradient().dtype();
}

StartingPoint load_own_checkpoint(const checkpoint::CheckpointReader& reader, const Recipe& recipe,
                                  const LoadChoice& choice, TrainingStep& step,
                                  const StateWriter& write) {
  const checkpoint::CheckpointState& state = reader.state();
  const auto extra = [&state](const char* name) {
    return nlohmann::json::parse(state.extra.at(name));
  };
  StartingPoint point;
  point.iteration = state.step;
  point.consumed_samples = state.consumed_samples;
  point.completed_steps = extra("completed_steps").get<int64_t>();
  point.recipe = extra("recipe").get<std::string>();
  point.read_bytes = restore(reader, step, write);
  std::optional<int64_t> batch;
  if (state.extra.contains("global_batch_size")) batch = extra("global_batch_size").get<int64_t>();
  tell_continuation(recipe, choice, batch, point);
  return point;
}

}  // namespace

std::filesystem::path locate_checkpoint(const std::filesystem::path& path,
                                        std::optional<int64_t> step, bool fallback,
                                        std::vector<std::string>* problems) {
  const std::filesystem::path folder = is_there(path / "checkpoints") ? path / "checkpoints" : path;
  if (step) {
    const std::filesystem::path wanted = checkpoint::checkpoint_path(folder, *step);
    if (is_there(wanted)) return wanted;
    throw FormatError(error_text(folder.string(), "checkpoint.ckpt_step " + std::to_string(*step),
                                 wanted.filename().string(), "no such folder"));
  }
  if (!fallback) {
    if (checkpoint::is_native_checkpoint(path)) return checkpoint::find_checkpoint(path);
    if (const auto file = convert::find_megatron_checkpoint(path)) return *file;
    return checkpoint::find_checkpoint(path);  // says what was looked for
  }
  std::vector<int64_t> steps = checkpoint::list_checkpoints(folder);
  std::reverse(steps.begin(), steps.end());
  for (const int64_t candidate : steps) {
    std::filesystem::path found = checkpoint::checkpoint_path(folder, candidate);
    try {
      check_whole(found);
      return found;
    } catch (const Error& error) {
      problems->emplace_back(error.what());
    }
  }
  throw FormatError(error_text(folder.string(), "", "a whole checkpoint", "none"));
}

StartingPoint load_starting_point(const std::filesystem::path& path, const Recipe& recipe,
                                  const LoadChoice& choice, TrainingStep& step,
                                  const StateWriter& write) {
  if (!choice.finetune && !choice.no_load_optim && checkpoint::is_native_checkpoint(path)) {
    const checkpoint::CheckpointReader reader(path);
    if (is_of_a_run(reader, step)) return load_own_checkpoint(reader, recipe, choice, step, write);
  }
  convert::OpenOptions open;
  open.config = recipe.model;  // of a Megatron checkpoint, whose args must then agree with it
  const auto source = convert::open_weights(path, open);
  require_same_tensors(*source, step);
  const convert::TrainingCounters counters = source->counters();
  const bool moments = !choice.finetune && !choice.no_load_optim;
  if (moments && !source->has_optimizer() && counters.iteration > 0) {
    throw FormatError(error_text(
        path.string(), "optimizer", "its state",
        "none; checkpoint.no_load_optim: true goes on without it, checkpoint.finetune: true takes "
        "the weights alone"));
  }
  StartingPoint point;
  if (!choice.finetune) {
    point.recipe = counters.recipe;
    point.iteration = counters.iteration;
    point.consumed_samples = consumed(counters, path);
    if (moments && source->has_optimizer()) {
      if (!counters.completed_steps)
        throw FormatError(error_text(path.string(), "optimizer", "the number of its updates",
                                     "none; checkpoint.no_load_optim: true goes on without it"));
      point.completed_steps = *counters.completed_steps;
    }
  }
  point.read_bytes = read_parameters(*source, moments && source->has_optimizer(), step, write);

  std::vector<std::string>& log = point.log;
  log = source->notes();
  log.push_back(source->describe() + ", " + path.string());
  if (choice.finetune) {
    log.push_back(
        "finetune: the weights alone are taken; iteration, data and optimizer start anew");
    return point;
  }
  if (!moments || !source->has_optimizer())
    log.push_back("optimizer: moments are 0 and the schedule starts at its beginning" +
                  std::string(choice.no_load_optim ? " (no_load_optim)" : ""));
  tell_continuation(recipe, choice, counters.global_batch_size, point);
  return point;
}

}  // namespace deltatrain::train
