#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/size_text.h"
#include "checkpoint/checkpoint.h"
#include "config/hf_config.h"
#include "convert/convert.h"
#include "data/loader.h"
#include "data/recipe_source.h"
#include "data/source_digest.h"
#include "model/initialization.h"
#include "model/training_step.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "text/tokenizer.h"
#include "train/device_peak.h"
#include "train/run_folder.h"
#include "train/run_log.h"
#include "train/run_ranks.h"
#include "train/saver.h"
#include "train/starting_point.h"
#include "train/step_profile.h"
#include "train/stopwatch.h"
#include "train/text_sampler.h"
#include "train/verdict.h"

namespace deltatrain::train {

namespace {

using Json = nlohmann::ordered_json;

// Where nothing was rehearsed the first step chooses algorithms, and the second may still load kernels.
constexpr int64_t kProfiledStep = 3;

std::string rate_text(int64_t bytes, double seconds) {
  return fmt::format("read {} in {:.2f} s ({}/s)", size_text(bytes), seconds,
                     size_text(static_cast<int64_t>(static_cast<double>(bytes) / seconds)));
}

LoadChoice load_choice(const CheckpointConfig& config) {
  return {config.finetune, config.no_load_optim, config.no_load_rng};
}

TokenBatch as_token_batch(const data::MicroBatch& batch) {
  return {.ids = batch.input_ids_R, .labels = batch.labels_R, .offsets = batch.sequence_offsets};
}

Context with_stream_of(const Recipe& recipe, Context context) {
  if (recipe.train.fp32_residual_connection) context.residual_stream = ResidualStream::kF32;
  return context;
}

class Trainer {
 public:
  Trainer(const Context& context, const Context& planning_context, const ResolvedRecipe& resolved,
          const TrainOptions& options, Reporter& reporter)
      : context_(with_stream_of(resolved.recipe, context)),
        planning_context_(with_stream_of(resolved.recipe, planning_context)),
        resolved_(resolved),
        recipe_(resolved.recipe),
        options_(options),
        reporter_(reporter),
        ranks_(options.ranks) {}

  TrainResult run();

 private:
  void open_data();
  BatchShape batch_shape(int64_t micro_batch) const;
  bool on_host() const { return context_.device->kind() != DeviceKind::kCuda; }
  StepRanks step_ranks() const;
  int64_t total_bytes(const MemoryPlan& plan) const;
  MemoryPlan plan_or_refuse() const;
  std::vector<checkpoint::CompanionFile> companions() const;
  void tell_decay_groups() const;
  void set_state();
  void compare_weights();
  void settle_algorithms();
  void rehearse();
  void start();
  void resume();
  std::filesystem::path locate(const std::filesystem::path& path, std::optional<int64_t> step);
  void go_on_from(const std::filesystem::path& from, const LoadChoice& choice);
  void tell_if_done();
  void loop();
  void one_step();
  RunDevice run_device() const;
  void write_profile();
  void validate();
  void sample();
  void save();
  void report_save(Saver::Wait wait);

  const Context context_;
  const Context planning_context_;
  const ResolvedRecipe& resolved_;
  const Recipe& recipe_;
  const TrainOptions& options_;
  Reporter& reporter_;
  RunRanks ranks_;

  std::unique_ptr<RunFolder> folder_;  // of rank 0, as is the log
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<StepProfile> profile_;            // outlives step_, whose context holds its table
  std::unique_ptr<dist::Collectives> collectives_;  // outlives step_
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<data::BatchLoader> loader_;
  std::unique_ptr<data::BatchLoader> validation_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<TextSampler> sampler_;
  int64_t iteration_ = 0;  // steps done, skipped ones included
  int64_t completed_ = 0;  // steps that changed the weights: what schedule and optimizer count
  int64_t saved_at_ = -1;
  int64_t steps_here_ = 0;  // of this process
  int64_t began_at_ = 0;
  int64_t max_starts_ = 1;  // of sequences in a row
  TrainResult result_;
};

void Trainer::open_data() {
  const data::SourceOptions source = data::training_source(recipe_, /*num_ranks=*/1);
  const data::LoaderOptions loader{.micro_batch_size = recipe_.train.micro_batch_size,
                                   .global_batch_size = recipe_.train.global_batch_size,
                                   .rank = ranks_.rank(),
                                   .num_ranks = ranks_.size()};
  loader_ = std::make_unique<data::BatchLoader>(data::open_sample_source(source), loader);
  const data::SampleSource& opened = loader_->source();
  reporter_.message(
      "data", fmt::format("{}: {:.2f} M tokens, {} samples of {} an epoch; {} steps of {} samples",
                          recipe_.data.train, static_cast<double>(opened.num_tokens()) * 1e-6,
                          opened.epoch_samples(), recipe_.train.seq_length,
                          recipe_.train.train_iters, recipe_.train.global_batch_size));
  max_starts_ = opened.max_starts();
  if (ranks_.size() > 1) ranks_.agree("digest of the data", data::source_digest(opened));
  const auto validation = data::validation_source(recipe_);
  if (!validation.has_value()) return;
  validation_ = std::make_unique<data::BatchLoader>(data::open_sample_source(*validation), loader);
  max_starts_ = std::max(max_starts_, validation_->source().max_starts());
  if (ranks_.size() > 1)
    ranks_.agree("digest of the validation data", data::source_digest(validation_->source()));
}

StepRanks Trainer::step_ranks() const {
  return {.sharding = {.rank = ranks_.rank(),
                       .num_ranks = ranks_.size(),
                       .sharded = recipe_.parallel.use_distributed_optimizer,
                       .bucket_elements = recipe_.parallel.ddp_bucket_size},
          .config = recipe_.parallel,
          .collectives = collectives_.get()};
}

// Where ranks compute in the host's memory, all of this host share it.
int64_t Trainer::total_bytes(const MemoryPlan& plan) const {
  return plan.total(on_host()) * (on_host() ? ranks_.local_size() : 1);
}

BatchShape Trainer::batch_shape(int64_t micro_batch) const {
  const int64_t rows = micro_batch * recipe_.train.seq_length;
  return {.num_rows = rows,
          .num_sequences = micro_batch * max_starts_,
          .lengths = max_starts_ > 1 ? SequenceLengths::kAny : SequenceLengths::kEqual,
          .loss_chunk_rows = recipe_.parallel.loss_chunk_rows};
}

MemoryPlan Trainer::plan_or_refuse() const {
  const int64_t wanted = recipe_.train.micro_batch_size;
  const auto plan_of = [&](int64_t micro_batch) {
    return TrainingStep::plan(planning_context_, recipe_.model, batch_shape(micro_batch),
                              TrainingStep::Purpose::kTrain, step_ranks());
  };
  const MemoryPlan plan = plan_of(wanted);
  const int64_t free_bytes = context_.device->free_memory_bytes();
  if (total_bytes(plan) <= free_bytes) return plan;
  int64_t fits = wanted - 1;
  for (; fits > 0; --fits) {
    if (recipe_.train.global_batch_size % fits != 0) continue;
    if (total_bytes(plan_of(fits)) <= free_bytes) break;
  }
  const std::string remedy =
      fits > 0 ? fmt::format("train.micro_batch_size {} or less", fits) : "a smaller model";
  throw DeviceError(error_text(
      "memory", fmt::format("train.micro_batch_size {}", wanted), remedy,
      fmt::format("{} needed, {} free", size_text(total_bytes(plan)), size_text(free_bytes))));
}

std::vector<checkpoint::CompanionFile> Trainer::companions() const {
  std::vector<checkpoint::CompanionFile> files = {
      {"config.json", model_config_to_hf(recipe_.model, DType::kF32)},
      {"recipe.yaml", resolved_.to_yaml()}};
  if (recipe_.data.tokenizer.empty()) return files;
  // Loaded once, so that a broken or foreign one is refused now and not when the model is used.
  const int64_t vocab_size = text::Tokenizer::load(recipe_.data.tokenizer).vocab_size();
  if (vocab_size > recipe_.model.vocab_size) {
    throw ConfigError(
        error_text(recipe_.data.tokenizer, "vocabulary",
                   fmt::format("at most model.vocab_size ({})", recipe_.model.vocab_size),
                   std::to_string(vocab_size)));
  }
  for (text::TokenizerFile& file : text::read_tokenizer_files(recipe_.data.tokenizer))
    files.push_back({std::move(file.name), std::move(file.content)});
  return files;
}

// Which parameters decay is easily got wrong and never seen in a loss: so it is said.
void Trainer::tell_decay_groups() const {
  struct Group {
    int64_t tensors = 0, parameters = 0;
  };
  Group decaying, others;
  for (const layers::ParameterInfo& info : step_->parameters().infos()) {
    const bool decays = optim::has_weight_decay(
        info.name, info.checkpoint_shape, recipe_.optimizer.decay_groups, recipe_.model.family);
    Group& group = decays ? decaying : others;
    ++group.tensors;
    group.parameters += info.num_elements();
  }
  reporter_.message(
      "train", fmt::format("weight decay {}: {} tensors of {} parameters decay, {} tensors of {} "
                           "do not",
                           recipe_.optimizer.weight_decay, decaying.tensors, decaying.parameters,
                           others.tensors, others.parameters));
}

// A rank whose memory or arithmetic failed would spoil the others' weights, step by step.
void Trainer::compare_weights() {
  if (ranks_.size() > 1) ranks_.compare_weights(iteration_, step_->weights_checksum());
}

void Trainer::rehearse() {
  const auto start = Clock::now();
  step_->rehearse();
  reporter_.message(
      "train",
      fmt::format("every product tried, and its algorithm chosen where it was not, in {:.1f} s",
                  std::chrono::duration<double>(Clock::now() - start).count()));
}

// A product's algorithm decides its last bits: rank 0 chooses, and every rank takes the same.
void Trainer::settle_algorithms() {
  if (ranks_.size() == 1) {
    if (options_.rehearse && iteration_ < recipe_.train.train_iters) rehearse();
    return;
  }
  if (!options_.algorithms || !options_.adopt_algorithms) return;
  ranks_.at(iteration_, "choice of matrix-product algorithms");
  if (ranks_.is_first()) rehearse();
  const std::string text =
      ranks_.broadcast("matrix-product algorithms", ranks_.is_first() ? options_.algorithms() : "");
  if (!ranks_.is_first()) options_.adopt_algorithms(text);
  ranks_.agree("checksum of the matrix-product algorithms",
               hex64(xxh3_64(text.data(), text.size())));
}

// Rank 0 finds out what the run starts from, and every rank gets it.
void Trainer::set_state() {
  ranks_.at(0, "initial state");
  if (ranks_.is_first()) {
    if (options_.resume) {
      resume();
    } else {
      start();
    }
    ranks_.share(Json{{"iteration", iteration_},
                      {"completed", completed_},
                      {"saved_at", saved_at_},
                      {"consumed", loader_->consumed_samples()}}
                     .dump());
    return;
  }
  const Json counters = Json::parse(ranks_.follow(*step_));
  iteration_ = began_at_ = counters.at("iteration").get<int64_t>();
  completed_ = counters.at("completed").get<int64_t>();
  saved_at_ = counters.at("saved_at").get<int64_t>();
  loader_->seek(counters.at("consumed").get<int64_t>());
}

void Trainer::start() {
  const CheckpointConfig& config = recipe_.checkpoint;
  if (config.load) {
    go_on_from(locate(*config.load, config.ckpt_step), load_choice(config));
    saved_at_ = -1;  // not in this run's folder
    return;
  }
  if (!config.init_from) {
    ranks_.writer (*step_)(StatePart::kWeights, [this](const Tensor& flat) {
      initialize(step_->context(), step_->parameters(), recipe_.model.initializer_range,
                 recipe_.train.seed, flat);
    });
    return;
  }
  const auto start = Clock::now();
  const StartingPoint point = load_starting_point(*config.init_from, recipe_, {.finetune = true},
                                                  *step_, ranks_.writer(*step_));
  for (const std::string& line : point.log) reporter_.message("train", line);
  reporter_.message("train", rate_text(point.read_bytes, seconds_since(start)));
}

std::filesystem::path Trainer::locate(const std::filesystem::path& path,
                                      std::optional<int64_t> step) {
  std::vector<std::string> problems;
  std::filesystem::path found =
      locate_checkpoint(path, step, recipe_.checkpoint.fallback, &problems);
  for (const std::string& problem : problems) reporter_.warning("resume", problem);
  return found;
}

// Takes a checkpoint over and says in the log what that means.
void Trainer::go_on_from(const std::filesystem::path& from, const LoadChoice& choice) {
  const auto start = Clock::now();
  StartingPoint point = load_starting_point(from, recipe_, choice, *step_, ranks_.writer(*step_));
  const double seconds = seconds_since(start);
  iteration_ = saved_at_ = began_at_ = point.iteration;
  completed_ = point.completed_steps;
  loader_->seek(point.consumed_samples);
  point.log.push_back(rate_text(point.read_bytes, seconds));
  for (const std::string& line : point.log) reporter_.message("resume", line);
  if (point.recipe) {
    for (const std::string& change :
         digest_differences(recipe_, parse_recipe(*point.recipe, from.string(), {}).recipe)) {
      point.log.push_back("changed since the checkpoint, and used from here on: " + change);
      reporter_.warning("resume", point.log.back());
    }
  }
  log_->resumed({.step = iteration_,
                 .consumed_samples = point.consumed_samples,
                 .checkpoint = from.string(),
                 .meaning = point.log,
                 .read_bytes = point.read_bytes,
                 .read_seconds = seconds});
  tell_if_done();
}

void Trainer::resume() {
  const CheckpointConfig& config = recipe_.checkpoint;
  LoadChoice choice = load_choice(config);
  std::optional<int64_t> step = config.ckpt_step;
  if (config.load) {
    // What the recipe says of another run's checkpoint was done when this run began.
    reporter_.message("resume",
                      "checkpoint.load and what goes with it are left alone: the run goes "
                      "on from its own checkpoint");
    choice = {};
    step.reset();
  }
  go_on_from(locate(folder_->checkpoints(), step), choice);
}

void Trainer::tell_if_done() {
  if (iteration_ < recipe_.train.train_iters) return;
  reporter_.message("train", fmt::format("nothing to do: train.train_iters is {}, and step {} is "
                                         "done",
                                         recipe_.train.train_iters, iteration_));
}

void Trainer::one_step() {
  const bool profiled = options_.profile && ++steps_here_ == kProfiledStep;
  profile_->start(profiled ? StepProfile::Detail::kOps : StepProfile::Detail::kParts);
  if (profiled && collectives_ != nullptr) collectives_->start_times();
  const auto start = Clock::now();
  const double waited_before = loader_->waited_seconds();
  ranks_.at(iteration_ + 1, "data");
  const data::StepBatch& batch = loader_->next_step();
  const double waited = loader_->waited_seconds() - waited_before;
  const double rate = optim::learning_rate(recipe_.optimizer, recipe_.schedule,
                                           recipe_.train.train_iters, completed_);
  const auto valid = static_cast<double>(std::max<int64_t>(1, batch.num_valid_tokens));
  step_->begin();
  ranks_.at(iteration_ + 1, "forward and backward");
  for (const data::MicroBatch& micro : batch.micro_batches) {
    const bool is_last = &micro == &batch.micro_batches.back();
    step_->accumulate(as_token_batch(micro), 1 / valid,
                      is_last ? TrainingStep::Turn::kLast : TrainingStep::Turn::kMore);
  }
  optim::Optimizer::Result update;
  double loss = 0;
  {
    const auto waiting = ranks_.waiting("sums over ranks and update");
    if (saver_ != nullptr) saver_->finish_copy();
    update = step_->update(rate, completed_ + 1);
    loss = step_->loss_sum() / valid;
  }
  ranks_.check();  // before numbers are believed that a lost rank may have spoilt
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  profile_->finish();
  const bool finite = std::isfinite(loss) && !update.skipped;
  ++iteration_;
  if (options_.steps_done != nullptr) *options_.steps_done = iteration_;
  if (profiled) write_profile();
  if (finite) {
    ++completed_;
    result_.last_loss = loss;
  } else {
    ++result_.skipped_steps;
  }
  if (log_ != nullptr) {
    log_->step({.step = iteration_,
                .consumed_samples = loader_->consumed_samples(),
                .loss = loss,
                .gradient_norm = update.gradient_norm,
                .learning_rate = rate,
                .next_learning_rate = optim::learning_rate(recipe_.optimizer, recipe_.schedule,
                                                           recipe_.train.train_iters, completed_),
                .seconds = seconds,
                .data_seconds = waited,
                .skipped = !finite,
                .part_seconds = profile_->part_seconds()});
  }
  if (!finite && recipe_.train.on_nonfinite == OnNonFinite::kStop) {
    throw NumericError(
        error_text(fmt::format("step {}", iteration_), "loss and gradient norm", "finite numbers",
                   fmt::format("{} and {}", loss, update.gradient_norm)) +
        "; nothing was saved over the last checkpoint (train.on_nonfinite: skip leaves such "
        "steps out)");
  }
}

RunDevice Trainer::run_device() const {
  const std::string description = context_.device->description();
  return {.description = description,
          .pci_bus_id = options_.pci_bus_id,
          .peak_flops = peak_flops(description, context_.activation_dtype),
          .num_ranks = ranks_.size()};
}

void Trainer::write_profile() {
  const std::filesystem::path folder = options_.out / "profile";
  std::filesystem::create_directories(folder);
  const int rank = ranks_.rank();
  std::filesystem::path trace = folder / fmt::format("rank{}.trace.json", rank);
  const std::string events = profile_->chrome_trace(rank);
  write_file_atomically(trace, events);
  dist::CollectiveTimes times;
  if (collectives_ != nullptr) times = collectives_->take_times();
  const std::vector<std::string> all = ranks_.gather("profile", events);
  if (!ranks_.is_first()) return;
  if (all.size() > 1) {
    trace = options_.out / "profile.trace.json";
    write_file_atomically(trace, join_traces(all));
  }
  std::string tables = profile_->tables();
  if (collectives_ != nullptr) {
    const double hidden =
        times.busy_seconds > 0 ? 1 - times.exposed_seconds / times.busy_seconds : 1;
    tables += fmt::format(
        "\nOver {} ranks by {}: {:.1f} MB, {:.2f} ms at work, of which ops waited {:.2f} ms: "
        "{:.0f} % "
        "hidden.\n",
        ranks_.size(), collectives_->description(), static_cast<double>(times.bytes) * 1e-6,
        1e3 * times.busy_seconds, 1e3 * times.exposed_seconds, 100 * hidden);
  }
  write_file_atomically(folder / "step.md", tables);
  reporter_.message("profile", fmt::format("step {}: {} and {}", iteration_,
                                           (folder / "step.md").string(), trace.string()));
}

void Trainer::validate() {
  if (validation_ == nullptr) return;
  const auto start = Clock::now();
  ranks_.at(iteration_, "validation");
  validation_->seek(0);
  int64_t batches = recipe_.train.eval_iters;
  if (batches == 0) {
    batches = std::max<int64_t>(
        1, validation_->source().epoch_samples() / recipe_.train.global_batch_size);
  }
  double sum = 0;
  int64_t tokens = 0;
  for (int64_t i = 0; i < batches; ++i) {
    const data::StepBatch& batch = validation_->next_step();
    for (const data::MicroBatch& micro : batch.micro_batches)
      sum += step_->evaluate(as_token_batch(micro));
    tokens += batch.num_valid_tokens;
  }
  result_.validation_loss = sum / static_cast<double>(std::max<int64_t>(1, tokens));
  if (log_ == nullptr) return;
  log_->validation(iteration_, *result_.validation_loss, tokens,
                   std::chrono::duration<double>(Clock::now() - start).count());
}

void Trainer::sample() {
  if (sampler_ == nullptr) return;  // rank 0 looks
  ranks_.at(iteration_, "sample of text");
  const auto start = Clock::now();
  try {
    const std::string text = sampler_->continue_prompt(*step_, iteration_);
    log_->sample(iteration_, sampler_->prompt(), text,
                 std::chrono::duration<double>(Clock::now() - start).count());
  } catch (const NumericError& error) {
    reporter_.warning("train", fmt::format("step {}: no sample: {}", iteration_, error.what()));
  }
}

void Trainer::report_save(Saver::Wait wait) {
  if (saver_ == nullptr) return;  // rank 0 saves
  const auto finished = saver_->finished(wait);
  if (finished) log_->saved(*finished);
}

void Trainer::save() {
  if (saved_at_ == iteration_) return;
  ranks_.at(iteration_, "save");
  ranks_.meet("save");  // a save that a lost rank would break is not begun
  compare_weights();
  if (!ranks_.is_first()) {
    if (recipe_.parallel.use_distributed_optimizer) take_part_in_save(*step_);
    saved_at_ = iteration_;
    return;
  }
  report_save(Saver::Wait::kYes);
  checkpoint::CheckpointState state{
      .step = iteration_, .consumed_samples = loader_->consumed_samples(), .extra = {}};
  state.extra["completed_steps"] = std::to_string(completed_);
  state.extra["global_batch_size"] = std::to_string(recipe_.train.global_batch_size);
  state.extra["recipe"] = Json(resolved_.to_yaml()).dump();
  state.extra["recipe_digest"] = Json(resolved_.digest()).dump();
  // Every random stream follows from the seed, the step and a tensor's name: there is no other
  // state.
  state.extra["random"] = Json{{"seed", recipe_.train.seed}}.dump();
  if (options_.algorithms) state.extra["algorithms"] = options_.algorithms();
  saver_->save(*step_, state);
  saved_at_ = iteration_;
}

void Trainer::loop() {
  const int64_t eval = recipe_.train.eval_interval, interval = recipe_.checkpoint.save_interval;
  while (iteration_ < recipe_.train.train_iters && result_.stopped_by_signal == 0) {
    one_step();
    report_save(Saver::Wait::kNo);
    const int64_t compare = recipe_.parallel.checksum_interval;
    if (compare > 0 && iteration_ % compare == 0) compare_weights();
    const bool last = iteration_ == recipe_.train.train_iters;
    if (last || (eval > 0 && iteration_ % eval == 0)) {
      validate();
      sample();
    }
    const int signal =
        ranks_.most("end of step", options_.stop_signal ? options_.stop_signal() : 0);
    if (last || signal != 0 || (interval > 0 && iteration_ % interval == 0)) save();
    if (!last) result_.stopped_by_signal = signal;
  }
  report_save(Saver::Wait::kYes);
}

// What could only fail when the first checkpoint is written, or contradicts itself.
void refuse_impossible_checkpoints(const Recipe& recipe) {
  const CheckpointConfig& config = recipe.checkpoint;
  if (config.load && config.init_from)
    throw ConfigError(
        error_text("train", "checkpoint.load", "null beside checkpoint.init_from", *config.load));
  const auto spec = config.megatron_spec == MegatronLayers::kTe ? convert::LayerSpec::kTe
                                                                : convert::LayerSpec::kNoTe;
  const auto refuse = [&](const char* key, convert::TargetFormat format) {
    const std::string problem = convert::find_export_problem(recipe.model, format, spec);
    if (!problem.empty())
      throw UnsupportedError(error_text("train", key, "a model of that form", problem));
  };
  if (config.format == CheckpointFormat::kMegatron)
    refuse("checkpoint.format megatron", convert::TargetFormat::kMegatron);
  if (config.hf) refuse("checkpoint.hf", convert::TargetFormat::kHuggingFace);
}

TrainResult Trainer::run() {
  ranks_.begin(resolved_);
  refuse_impossible_checkpoints(recipe_);
  std::vector<checkpoint::CompanionFile> files;
  if (ranks_.is_first()) files = companions();
  open_data();
  const MemoryPlan plan = plan_or_refuse();
  if (ranks_.is_first()) {
    if (!options_.sample_prompt.empty())
      sampler_ = std::make_unique<TextSampler>(recipe_, options_.sample_prompt);
    folder_ = std::make_unique<RunFolder>(
        options_.out, options_.resume ? RunFolder::Mode::kResume : RunFolder::Mode::kNew);
    log_ = std::make_unique<RunLog>(*folder_, recipe_, reporter_);
  }
  ranks_.meet("run folder");
  forget_verdicts(options_.out, ranks_.rank(), ranks_.size());
  if (options_.steps_done != nullptr) *options_.steps_done = 0;
  try {
    profile_ = std::make_unique<StepProfile>(context_);
    if (ranks_.size() > 1) collectives_ = options_.collectives();
    step_ =
        std::make_unique<TrainingStep>(profile_->context(), recipe_.model, recipe_.optimizer,
                                       batch_shape(recipe_.train.micro_batch_size), plan.arena(),
                                       TrainingStep::Purpose::kTrain, step_ranks());
    if (ranks_.is_first()) {
      saver_ = std::make_unique<Saver>(folder_->checkpoints(), recipe_, resolved_.to_yaml(), files);
      // A resumed run has its state to read first, with memory for nothing besides.
      if (!options_.resume) saver_->prepare(*step_);
      log_->begin(resolved_, options_.command, run_device(), step_->parameters().num_parameters(),
                  plan, plan.total(on_host()));
      if (collectives_ != nullptr)
        reporter_.message("train",
                          fmt::format("{} ranks, {}", ranks_.size(), collectives_->description()));
      tell_decay_groups();
    }
    set_state();
    if (options_.resume && ranks_.is_first()) saver_->prepare(*step_);
    compare_weights();
    settle_algorithms();
    if (ranks_.is_first()) folder_->write_recipe(resolved_.to_yaml());
    loop();
    ranks_.meet("end of the run");
  } catch (const NumericError&) {
    report_save(Saver::Wait::kYes);
    if (log_ != nullptr) log_->end(iteration_, "not finite");
    throw;
  } catch (const CollectiveError&) {
    report_save(Saver::Wait::kYes);
    if (log_ != nullptr) log_->end(iteration_, "lost a rank");
    throw;
  } catch (const DeviceError& error) {
    if (iteration_ == 0 && !options_.resume && folder_ != nullptr) folder_->discard();
    if (step_ == nullptr) throw;  // the text says what there was no memory for
    throw DeviceError(fmt::format("{} (in step {}; checkpoints in {} are as they were)",
                                  error.what(), iteration_ + 1,
                                  (options_.out / "checkpoints").string()));
  } catch (...) {
    // What fails before the first step, such as a token past the vocabulary or weights of another
    // model, leaves nothing behind.
    if (iteration_ == began_at_ && !options_.resume && folder_ != nullptr) folder_->discard();
    throw;
  }
  if (log_ != nullptr)
    log_->end(iteration_, result_.stopped_by_signal != 0 ? "stopped by a signal" : "done");
  result_.steps = iteration_;
  return result_;
}

}  // namespace

TrainResult train(const Context& context, const Context& planning_context,
                  const ResolvedRecipe& resolved, const TrainOptions& options, Reporter& reporter) {
  std::atomic<int64_t> steps_done = -1;
  TrainOptions own = options;
  if (own.steps_done == nullptr) own.steps_done = &steps_done;
  const auto record = [&own](int exit_code, const std::string& message) {
    // A folder that this run never had is left as it is.
    if (*own.steps_done < 0) return;
    if (own.ranks == nullptr && !std::filesystem::exists(own.out / "metrics.jsonl")) return;
    record_verdict(own.out, own.ranks, *own.steps_done, exit_code, message);
  };
  try {
    const TrainResult result = Trainer(context, planning_context, resolved, own, reporter).run();
    record(result.stopped_by_signal == 0 ? 0 : 128 + result.stopped_by_signal, "");
    return result;
  } catch (const Error& error) {
    record(static_cast<int>(error.code()), error.what());
    throw;
  } catch (const std::exception& error) {
    record(static_cast<int>(ExitCode::kInternal), error.what());
    throw;
  }
}

}  // namespace deltatrain::train
