#include "convert/megatron_writer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/iteration_folder.h"
#include "config/recipe_reader.h"
#include "convert/megatron_random.h"
#include "formats/element_cast.h"
#include "formats/torch_file.h"

namespace deltatrain::convert {

using formats::PickleWriter;

namespace {

constexpr int64_t kBlockElements = int64_t{1} << 21;

// What goes into a storage.
enum class Part : uint8_t { kWeight, kMaster, kExpAvg, kExpAvgSq };

struct Job {
  const MegatronTensor* tensor = nullptr;
  Part part = Part::kWeight;
};

const char* style_name(DecayStyle style) {
  switch (style) {
    case DecayStyle::kConstant:
      return "constant";
    case DecayStyle::kLinear:
      return "linear";
    case DecayStyle::kCosine:
      return "cosine";
  }
  return "";
}

class Writer {
 public:
  Writer(const WeightSource& source, const MegatronTarget& target,
         const std::filesystem::path& file)
      : source_(source),
        target_(target),
        config_(source.config()),
        table_(megatron_tensors(config_, target.spec, padded_vocabulary(config_.vocab_size))),
        counters_(source.counters()),
        with_optimizer_(writes_optimizer(source)),
        out_(file) {
    for (const formats::TensorSpec& spec : source.tensors()) dtypes_.emplace(spec.name, spec.dtype);
    if (counters_.recipe)
      recipe_ = parse_recipe(*counters_.recipe, file.string() + ": recipe", {}).recipe;
  }

  void run(const std::function<void(const std::string&)>& on_tensor) {
    write_tree();
    for (const Job& job : jobs_) {
      on_tensor(job.tensor->rows.name);
      out_.begin_tensor();
      write_tensor(job);
    }
    for (const std::string& state : generator_states_) {
      out_.begin_tensor();
      out_.write(state.data(), static_cast<int64_t>(state.size()));
    }
    out_.commit();
  }

 private:
  void announce(const MegatronTensor& tensor, Part part) {
    const DType dtype = part == Part::kWeight ? target_.dtype : DType::kF32;
    out_.announce(dtype, tensor.rows.shape, pickle_);
    jobs_.push_back({&tensor, part});
  }

  void entry(const char* key, int64_t value) {
    pickle_.text(key);
    pickle_.integer(value);
  }
  void entry(const char* key, double value) {
    pickle_.text(key);
    pickle_.number(value);
  }
  void entry(const char* key, bool value) {
    pickle_.text(key);
    pickle_.boolean(value);
  }
  void entry(const char* key, const char* value) {
    pickle_.text(key);
    pickle_.text(value);
  }
  void entry(const char* key, const std::optional<int64_t>& value) {
    pickle_.text(key);
    if (value) {
      pickle_.integer(*value);
    } else {
      pickle_.none();
    }
  }

  void write_tree() {
    pickle_.begin_dict();
    if (target_.args == MegatronArgsMode::kNamespace) {
      write_args();
      entry("checkpoint_version", 3.0);
    } else {
      // The same number to Megatron; PyTorch 1.13 reads no floats with weights_only.
      entry("checkpoint_version", int64_t{3});
    }
    entry("iteration", counters_.iteration);
    pickle_.text("model");
    pickle_.begin_ordered_dict();
    for (const MegatronTensor& tensor : table_) {
      pickle_.text(tensor.rows.name);
      announce(tensor, Part::kWeight);
    }
    pickle_.end_dict();
    if (with_optimizer_) {
      write_optimizer();
      write_scheduler();
    }
    if (target_.args == MegatronArgsMode::kNamespace) write_generators();
    entry("num_floating_point_operations_so_far", int64_t{0});
    pickle_.end_dict();
    out_.write_tree(pickle_.finish());
  }

  std::vector<const MegatronTensor*> group(bool decays) const {
    std::vector<const MegatronTensor*> members;
    for (const MegatronTensor& tensor : table_) {
      if (megatron_decays(tensor.rows.shape) == decays) members.push_back(&tensor);
    }
    return members;
  }

  void write_optimizer() {
    const bool wrapped = target_.dtype != DType::kF32;
    pickle_.text("optimizer");
    pickle_.begin_dict();
    if (wrapped) {
      pickle_.text("optimizer");
      pickle_.begin_dict();
    }
    pickle_.text("state");
    pickle_.begin_dict();
    int64_t number = 0;
    for (const bool decays : {true, false}) {
      for (const MegatronTensor* tensor : group(decays)) {
        pickle_.integer(number++);
        pickle_.begin_dict();
        pickle_.text("exp_avg");
        announce(*tensor, Part::kExpAvg);
        pickle_.text("exp_avg_sq");
        announce(*tensor, Part::kExpAvgSq);
        pickle_.end_dict();
      }
    }
    pickle_.end_dict();
    pickle_.text("param_groups");
    pickle_.begin_list();
    number = 0;
    for (const bool decays : {true, false}) {
      const auto count = static_cast<int64_t>(group(decays).size());
      write_group(decays, number, count);
      number += count;
    }
    pickle_.end_list();
    if (wrapped) {
      pickle_.end_dict();
      pickle_.text("fp32_from_fp16_params");
      pickle_.begin_list();
      for (const bool decays : {true, false}) {
        pickle_.begin_list();
        for (const MegatronTensor* tensor : group(decays)) announce(*tensor, Part::kMaster);
        pickle_.end_list();
      }
      pickle_.end_list();
    }
    pickle_.end_dict();
  }

  void write_group(bool decays, int64_t first, int64_t count) {
    const OptimizerConfig& optimizer = recipe_->optimizer;
    pickle_.begin_dict();
    entry("lr", optimizer.lr);
    entry("bias_correction", true);
    pickle_.text("betas");
    pickle_.begin_tuple();
    pickle_.number(optimizer.adam_beta1);
    pickle_.number(optimizer.adam_beta2);
    pickle_.end_tuple();
    entry("eps", optimizer.adam_eps);
    entry("weight_decay", decays ? optimizer.weight_decay : 0.0);
    entry("wd_mult", decays ? 1.0 : 0.0);
    entry("lr_mult", 1.0);
    entry("is_expert_parallel", false);
    entry("is_decoupled_lr", false);
    entry("max_lr", optimizer.lr);
    entry("min_lr", optimizer.min_lr);
    entry("step", *counters_.completed_steps);
    pickle_.text("params");
    pickle_.begin_list();
    for (int64_t i = 0; i < count; ++i) pickle_.integer(first + i);
    pickle_.end_list();
    pickle_.end_dict();
  }

  // Megatron counts the schedule in samples.
  void write_scheduler() {
    const Recipe& recipe = *recipe_;
    const int64_t batch = recipe.train.global_batch_size;
    const int64_t decay_iters = recipe.schedule.lr_decay_iters > 0 ? recipe.schedule.lr_decay_iters
                                                                   : recipe.train.train_iters;
    pickle_.text("opt_param_scheduler");
    pickle_.begin_dict();
    entry("max_lr", recipe.optimizer.lr);
    entry("lr_warmup_steps", recipe.schedule.lr_warmup_iters * batch);
    entry("num_steps", *counters_.completed_steps * batch);
    entry("lr_decay_style", style_name(recipe.schedule.lr_decay_style));
    entry("lr_decay_steps", decay_iters * batch);
    entry("min_lr", recipe.optimizer.min_lr);
    entry("start_wd", recipe.optimizer.weight_decay);
    entry("end_wd", recipe.optimizer.weight_decay);
    entry("wd_incr_style", "constant");
    entry("wd_incr_steps", recipe.train.train_iters * batch);
    pickle_.end_dict();
  }

  void write_args() {
    const ModelConfig& c = config_;
    pickle_.text("args");
    pickle_.begin_namespace();
    entry("num_layers", 2 * c.num_hidden_layers);
    entry("hidden_size", c.hidden_size);
    entry("ffn_hidden_size", c.intermediate_size);
    entry("num_attention_heads", c.attn ? c.attn->num_heads : c.num_heads);
    entry("linear_num_key_heads", c.num_heads);
    entry("linear_num_value_heads", c.num_v_heads);
    entry("linear_key_head_dim", c.head_dim);
    entry("linear_value_head_dim", c.head_v_dim());
    entry("linear_conv_kernel_dim", c.conv_size);
    entry("use_short_conv", c.use_short_conv);
    entry("normalization", "RMSNorm");
    entry("layernorm_epsilon", c.norm_eps);
    entry("init_method_std", c.initializer_range);
    entry("add_bias_linear", false);
    entry("swiglu", true);
    entry("hidden_dropout", 0.0);
    entry("attention_dropout", 0.0);
    entry("untie_embeddings_and_output_weights", !c.tie_word_embeddings);
    entry("add_position_embedding", false);
    entry("position_embedding_type", "none");
    entry("is_hybrid_model", true);
    entry("multi_latent_attention", c.attn.has_value());
    if (c.attn) {
      entry("q_lora_rank", c.attn->q_lora_rank);
      entry("kv_lora_rank", c.attn->kv_lora_rank);
      entry("qk_head_dim", c.attn->qk_nope_head_dim);
      entry("qk_pos_emb_head_dim", c.attn->qk_rope_head_dim);
      entry("v_head_dim", c.attn->v_head_dim);
      entry("rotary_base", c.attn->rope_theta);
      entry("rotary_scaling_factor", 1.0);
      entry("hybrid_override_pattern", pattern().c_str());
    }
    entry("vocab_size", c.vocab_size);
    entry("padded_vocab_size", padded_vocabulary(c.vocab_size));
    entry("make_vocab_size_divisible_by", int64_t{128});
    entry("max_position_embeddings", c.max_position_embeddings);
    entry("tensor_model_parallel_size", int64_t{1});
    entry("pipeline_model_parallel_size", int64_t{1});
    entry("expert_model_parallel_size", int64_t{1});
    entry("context_parallel_size", int64_t{1});
    entry("world_size", int64_t{1});
    entry("data_parallel_size", int64_t{1});
    entry("data_parallel_random_init", false);
    entry("use_distributed_optimizer", false);
    entry("ckpt_format", "torch");
    entry("bf16", target_.dtype == DType::kBF16);
    entry("fp16", false);
    pickle_.text("params_dtype");
    pickle_.global("torch", target_.dtype == DType::kBF16 ? "bfloat16" : "float32");
    entry("iteration", counters_.iteration);
    entry("consumed_train_samples", counters_.consumed_samples.value_or(0));
    entry("skipped_train_samples", int64_t{0});
    entry("consumed_valid_samples", int64_t{0});
    entry("no_save_optim", !with_optimizer_);
    entry("no_save_rng", false);
    if (recipe_) {
      const Recipe& r = *recipe_;
      entry("seq_length", r.train.seq_length);
      entry("micro_batch_size", r.train.micro_batch_size);
      entry("global_batch_size", r.train.global_batch_size);
      entry("train_iters", r.train.train_iters);
      entry("seed", static_cast<int64_t>(r.train.seed));
      entry("lr", r.optimizer.lr);
      entry("min_lr", r.optimizer.min_lr);
      entry("lr_warmup_iters", r.schedule.lr_warmup_iters);
      entry("lr_decay_iters",
            r.schedule.lr_decay_iters > 0 ? r.schedule.lr_decay_iters : r.train.train_iters);
      entry("lr_decay_style", style_name(r.schedule.lr_decay_style));
      entry("adam_beta1", r.optimizer.adam_beta1);
      entry("adam_beta2", r.optimizer.adam_beta2);
      entry("adam_eps", r.optimizer.adam_eps);
      entry("weight_decay", r.optimizer.weight_decay);
      entry("clip_grad", r.optimizer.clip_grad);
    }
    pickle_.end_namespace();
  }

  void announce_state(const char* key, const std::string& state) {
    pickle_.text(key);
    out_.announce(DType::kU8, {static_cast<int64_t>(state.size())}, pickle_);
    generator_states_.push_back(state);
  }

  void write_generators() {
    const MegatronGenerators generators = seeded_generators(recipe_ ? recipe_->train.seed : 0);
    pickle_.text("rng_state");
    pickle_.begin_list();
    pickle_.begin_dict();
    pickle_.text("random_rng_state");
    pickle_.begin_tuple();
    pickle_.integer(3);  // version of Python's tuple
    pickle_.begin_tuple();
    for (const int64_t word : generators.python) pickle_.integer(word);
    pickle_.end_tuple();
    pickle_.none();
    pickle_.end_tuple();
    pickle_.text("np_rng_state");
    pickle_.begin_tuple();
    pickle_.text("MT19937");
    pickle_.numpy_u32(generators.numpy);
    pickle_.integer(static_cast<int64_t>(generators.numpy.size()));
    pickle_.integer(0);  // no cached normal value
    pickle_.number(0);
    pickle_.end_tuple();
    announce_state("torch_rng_state", generators.torch);
    announce_state("cuda_rng_state", generators.cuda);
    pickle_.text("rng_tracker_states");
    pickle_.begin_dict();
    for (const auto& [name, state] : generators.tracker) announce_state(name.c_str(), state);
    pickle_.end_dict();
    pickle_.end_dict();
    pickle_.end_list();
  }

  // "*-M-M-": attention, mixer, MLP.
  std::string pattern() const {
    std::string text;
    for (int64_t block = 0; block < config_.num_hidden_layers; ++block)
      text += config_.is_mla_layer(block) ? "*-" : "M-";
    return text;
  }

  // Elements of a parameter as f32, or as stored where nothing has to be computed.
  void read_part(Part part, const std::string& name, int64_t begin, int64_t count, float* out) {
    switch (part) {
      case Part::kExpAvg:
        return source_.read_state(StatePart::kExpAvg, name, begin, count, out);
      case Part::kExpAvgSq:
        return source_.read_state(StatePart::kExpAvgSq, name, begin, count, out);
      case Part::kMaster:
        return source_.read_state(StatePart::kMaster, name, begin, count, out);
      case Part::kWeight:
        break;
    }
    if (with_optimizer_) return source_.read_state(StatePart::kMaster, name, begin, count, out);
    const DType stored = dtypes_.at(name);
    raw_.resize(static_cast<size_t>(count * dtype_bytes(stored)));
    source_.read(name, begin, count, raw_.data());
    formats::cast_elements(stored, raw_.data(), DType::kF32, out, count);
  }

  void write_values(Part part, const std::vector<float>& values, int64_t count) {
    const DType dtype = part == Part::kWeight ? target_.dtype : DType::kF32;
    if (dtype == DType::kF32) {
      out_.write(values.data(), count * 4);
      return;
    }
    cast_.resize(static_cast<size_t>(count * dtype_bytes(dtype)));
    formats::cast_elements(DType::kF32, values.data(), dtype, cast_.data(), count);
    out_.write(cast_.data(), count * dtype_bytes(dtype));
  }

  void write_tensor(const Job& job) {
    const TensorRows& rows = job.tensor->rows;
    std::vector<double> sums;  // of the named rows, for what stands in rows without a name
    const bool is_weight = job.part == Part::kWeight || job.part == Part::kMaster;
    const bool padded = rows.runs.back().name.empty() && job.tensor->unmapped == Unmapped::kNo;
    if (padded && is_weight) sums.assign(static_cast<size_t>(rows.row_elements), 0);
    int64_t summed_rows = 0;
    std::string open;
    for (const RowRun& run : rows.runs) {
      if (run.name.empty()) {
        write_filler(job, run.num_rows, sums, summed_rows);
        continue;
      }
      if (run.name != open && !open.empty()) source_.release(open);
      open = run.name;
      const int64_t block_rows = std::max<int64_t>(1, kBlockElements / rows.row_elements);
      for (int64_t row = 0; row < run.num_rows; row += block_rows) {
        const int64_t n = std::min(block_rows, run.num_rows - row) * rows.row_elements;
        values_.resize(static_cast<size_t>(n));
        read_part(job.part, run.name, (run.first_row + row) * rows.row_elements, n, values_.data());
        for (int64_t i = 0; !sums.empty() && i < n; ++i)
          sums[static_cast<size_t>(i % rows.row_elements)] += values_[static_cast<size_t>(i)];
        write_values(job.part, values_, n);
      }
      summed_rows += run.num_rows;
    }
    if (!open.empty()) source_.release(open);
  }

  // Rows that only Megatron has: ones for a norm that is never applied; the mean row for the
  // vocabulary's padding, whose logits then stay below the others'; zero for moments.
  void write_filler(const Job& job, int64_t num_rows, const std::vector<double>& sums,
                    int64_t summed_rows) {
    const bool is_weight = job.part == Part::kWeight || job.part == Part::kMaster;
    const int64_t width = job.tensor->rows.row_elements;
    values_.assign(static_cast<size_t>(width),
                   is_weight && job.tensor->unmapped == Unmapped::kOnes ? 1.0F : 0.0F);
    for (size_t i = 0; i < sums.size(); ++i)
      values_[i] =
          static_cast<float>(sums[i] / static_cast<double>(std::max<int64_t>(1, summed_rows)));
    for (int64_t row = 0; row < num_rows; ++row) write_values(job.part, values_, width);
  }

  const WeightSource& source_;
  const MegatronTarget& target_;
  const ModelConfig& config_;
  std::vector<MegatronTensor> table_;
  TrainingCounters counters_;
  bool with_optimizer_;
  std::optional<Recipe> recipe_;
  formats::TorchFileWriter out_;
  PickleWriter pickle_;
  std::vector<Job> jobs_;
  std::vector<std::string> generator_states_;  // announced after the jobs' tensors
  std::map<std::string, DType> dtypes_;
  std::vector<float> values_;
  std::vector<std::byte> raw_, cast_;
};

}  // namespace

bool writes_optimizer(const WeightSource& source) {
  const TrainingCounters counters = source.counters();
  return source.has_optimizer() && counters.recipe && counters.completed_steps;
}

void write_megatron_file(const WeightSource& source, const MegatronTarget& target,
                         const std::filesystem::path& file,
                         const std::function<void(const std::string&)>& on_tensor) {
  DELTATRAIN_CHECK(find_megatron_problem(source.config(), target.spec).empty(), file.string());
  Writer(source, target, file).run(on_tensor);
}

checkpoint::SaveReport save_megatron_checkpoint(
    const WeightSource& source, const MegatronTarget& target, const std::filesystem::path& folder,
    const checkpoint::SaveOptions& options,
    const std::function<void(const std::string&)>& on_tensor) {
  const auto before = [&options](const std::filesystem::path& file) {
    if (options.before_file) options.before_file(file);
  };
  int64_t bytes = 0;
  for (const MegatronTensor& tensor : megatron_tensors(
           source.config(), target.spec, padded_vocabulary(source.config().vocab_size))) {
    const int64_t optimizer_bytes = target.dtype == DType::kF32 ? 8 : 12;
    bytes += tensor.rows.shape.num_elements() *
             (dtype_bytes(target.dtype) + (writes_optimizer(source) ? optimizer_bytes : 0));
  }
  checkpoint::IterationFolder iteration(folder, source.step(), bytes);
  const std::filesystem::path name = std::filesystem::path("mp_rank_00") / "model_optim_rng.pt";
  const std::filesystem::path file = iteration.path() / name;
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error)
    throw FileError(file.string() + ": cannot be created: " + error.message(),
                    ExitCode::kEnvironment);
  before(iteration.final_path() / name);
  write_megatron_file(source, target, file, on_tensor);
  checkpoint::SaveReport report;
  report.folder = iteration.final_path();
  report.bytes = static_cast<int64_t>(std::filesystem::file_size(file));
  for (const checkpoint::CompanionFile& companion : options.companions) {
    before(iteration.final_path() / companion.name);
    write_file_atomically(iteration.path() / companion.name, companion.content);
    report.bytes += static_cast<int64_t>(companion.content.size());
  }
  sync_directory(iteration.path());
  iteration.commit([&] { before(folder / "latest_checkpointed_iteration.txt"); });
  report.seconds = iteration.seconds();
  return report;
}

}  // namespace deltatrain::convert
