#include "convert/megatron_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "config/hf_config.h"
#include "convert/megatron_args.h"
#include "convert/megatron_optimizer.h"
#include "convert/parameter_table.h"
#include "formats/element_cast.h"
#include "formats/torch_file.h"

namespace deltatrain::convert {

using formats::PickleKind;
using formats::PickleValue;
using formats::TorchFile;

namespace {

constexpr const char* kFileName = "model_optim_rng.pt";
constexpr const char* kRankFolder = "mp_rank_00";
constexpr const char* kTrackerName = "latest_checkpointed_iteration.txt";
constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr const char* kExtraState = "_extra_state";
// Primus widens KDA's merged projection where its width has no product in a library of AMD's.
constexpr int64_t kPaddedProjectionFrom = 2176, kPaddedProjectionTo = 2304;
constexpr int64_t kProjectionMultiple = 512;

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::string stripped(std::string text) {
  while (!text.empty() && std::string_view(" \r\n\t").find(text.back()) != std::string_view::npos)
    text.pop_back();
  return text;
}

// Forms of a checkpoint that this program doesn't read, by what lies in the folder.
void refuse_other_forms(const std::filesystem::path& folder) {
  const auto refuse = [&folder](const std::string& what, const std::string& remedy) {
    throw UnsupportedError(error_text(
        folder.string(), "", std::string(kRankFolder) + "/" + kFileName, what + "; " + remedy));
  };
  if (is_there(folder / "metadata.json") || is_there(folder / ".metadata"))
    refuse("a checkpoint in torch_dist or torch_dcp form",
           "Primus's consolidate_distcp_to_torch.py makes one file of it");
  for (const char* name : {"mp_rank_01", "mp_rank_00_000"}) {
    if (is_there(folder / name))
      refuse(std::string(name) + ": a model in parts, of several tensor or pipeline ranks",
             "only tensor and pipeline parallel size 1 is read");
  }
}

std::optional<std::filesystem::path> in_iteration(const std::filesystem::path& folder) {
  if (is_there(folder / kRankFolder / kFileName)) {
    refuse_other_forms(folder);
    return folder / kRankFolder / kFileName;
  }
  if (is_there(folder / kFileName)) return folder / kFileName;
  return std::nullopt;
}

class MegatronSource : public WeightSource {
 public:
  MegatronSource(std::filesystem::path path, const OpenOptions& options)
      : file_(path), where_(path.string()) {
    folder_ = path.parent_path();
    if (folder_.filename() == kRankFolder) folder_ = folder_.parent_path();
    list_weights();
    refuse_leaks();
    const MegatronArgs args(file_.root().find("args"));
    find_config(args, options);
    match();
    read_counters(args);
    if (!differences_.none()) return;
    optimizer_ = is_release() ? std::nullopt : read_megatron_optimizer(file_, weights_);
    if (optimizer_) counters_.completed_steps = optimizer_->completed_steps;
  }

  std::string describe() const override {
    return fmt::format("Megatron checkpoint of iteration {} ({} layer spec{})", counters_.iteration,
                       layer_spec_name(spec_), optimizer_ ? ", with optimizer state" : "");
  }
  int64_t step() const override { return counters_.iteration; }
  const std::filesystem::path& folder() const override { return folder_; }
  const ModelConfig& config() const override { return config_; }
  const std::vector<formats::TensorSpec>& tensors() const override { return tensors_; }
  checkpoint::TensorDifferences differences() const override { return differences_; }
  TrainingCounters counters() const override { return counters_; }
  std::vector<std::string> notes() const override { return notes_; }
  bool has_optimizer() const override { return optimizer_.has_value(); }

  void read(const std::string& name, int64_t begin, int64_t count, void* out) const override {
    const TensorRows& rows = rows_.at(name);
    const DType dtype = by_name_.at(rows.runs.front().name)->tensor.dtype;
    read_runs(rows, begin, count,
              [&](const std::string& from, int64_t at, int64_t n, int64_t done) {
                const MegatronStored& stored = *by_name_.at(from);
                stored.file->read(stored.tensor, at, n,
                                  static_cast<char*>(out) + done * dtype_bytes(dtype));
              });
  }

  void read_state(StatePart part, const std::string& name, int64_t begin, int64_t count,
                  float* out) const override {
    DELTATRAIN_CHECK(optimizer_.has_value(), name);
    read_runs(rows_.at(name), begin, count,
              [&](const std::string& from, int64_t at, int64_t n, int64_t done) {
                read_f32(stored_state(part, from), at, n, out + done);
              });
  }

  void stream(StatePart part, const std::vector<std::string>& names,
              const BlockConsumer& consume) const override {
    // What each tensor of the file holds of the parameters.
    struct Stretch {
      const std::string* name;
      int64_t first, count;  // elements of the file's tensor
      int64_t before;        // of the parameter's elements
    };
    std::map<std::string, std::vector<Stretch>> stretches;
    std::vector<std::string> others;
    for (const std::string& name : names) {
      const TensorRows& rows = rows_.at(name);
      const bool streams = std::all_of(rows.runs.begin(), rows.runs.end(), [&](const RowRun& run) {
        const MegatronStored& stored = stored_state(part, run.name);
        return stored.file == &file_ && file_.can_stream(stored.tensor);
      });
      if (!streams) {
        others.push_back(name);
        continue;
      }
      read_runs(rows, 0, rows.shape.num_elements(),
                [&](const std::string& from, int64_t at, int64_t n, int64_t done) {
                  stretches[from].push_back({&name, at, n, done});
                });
    }
    std::vector<formats::TorchTensor> tensors;
    std::vector<const std::vector<Stretch>*> held;
    for (const auto& [from, list] : stretches) {
      tensors.push_back(stored_state(part, from).tensor);
      held.push_back(&list);
    }
    std::vector<float> values;
    file_.stream(tensors, [&](size_t i, int64_t begin, std::span<const std::byte> piece) {
      const DType dtype = tensors[i].dtype;
      const int64_t at = begin / dtype_bytes(dtype);
      values.resize(piece.size() / static_cast<size_t>(dtype_bytes(dtype)));
      const auto count = static_cast<int64_t>(values.size());
      formats::cast_elements(dtype, piece.data(), DType::kF32, values.data(), count);
      for (const Stretch& stretch : *held[i]) {
        const int64_t from = std::max(at, stretch.first);
        const int64_t to = std::min(at + count, stretch.first + stretch.count);
        if (from >= to) continue;
        consume(*stretch.name, stretch.before + (from - stretch.first),
                std::span<const float>(values).subspan(static_cast<size_t>(from - at),
                                                       static_cast<size_t>(to - from)));
      }
    });
    WeightSource::stream(part, others, consume);
  }

  void release(const std::string& name) const override {
    for (const RowRun& run : rows_.at(name).runs) {
      const MegatronStored& stored = *by_name_.at(run.name);
      drop(stored);
      if (!optimizer_) continue;
      const auto found = optimizer_->moments.find(run.name);
      if (found == optimizer_->moments.end()) continue;
      drop(found->second.exp_avg);
      drop(found->second.exp_avg_sq);
      if (found->second.master) drop(*found->second.master);
    }
  }

 private:
  // Where a Megatron tensor's state lies; the weights themselves where there are no masters.
  const MegatronStored& stored_state(StatePart part, const std::string& from) const {
    if (!optimizer_) return *by_name_.at(from);
    const MegatronMoments& moments = optimizer_->moments.at(from);
    if (part == StatePart::kExpAvg) return moments.exp_avg;
    if (part == StatePart::kExpAvgSq) return moments.exp_avg_sq;
    return moments.master ? *moments.master : *by_name_.at(from);
  }

  static void drop(const MegatronStored& stored) {
    if (!stored.tensor.contiguous) return;
    const auto bytes =
        static_cast<size_t>(stored.tensor.shape.num_elements() * dtype_bytes(stored.tensor.dtype));
    drop_pages(stored.tensor.storage.first(std::min(bytes, stored.tensor.storage.size())));
  }

  static void read_f32(const MegatronStored& stored, int64_t begin, int64_t count, float* out) {
    if (stored.tensor.dtype == DType::kF32) {
      stored.file->read(stored.tensor, begin, count, out);
      return;
    }
    std::vector<std::byte> raw(static_cast<size_t>(count * dtype_bytes(stored.tensor.dtype)));
    stored.file->read(stored.tensor, begin, count, raw.data());
    formats::cast_elements(stored.tensor.dtype, raw.data(), DType::kF32, out, count);
  }

  // Calls take(Megatron name, first element there, count, elements before) for the stretches of
  // [begin, begin + count).
  template <class Take>
  static void read_runs(const TensorRows& rows, int64_t begin, int64_t count, const Take& take) {
    int64_t start = 0;  // of the run, in elements of the tensor
    for (const RowRun& run : rows.runs) {
      const int64_t length = run.num_rows * rows.row_elements;
      const int64_t from = std::max(begin, start);
      const int64_t to = std::min(begin + count, start + length);
      if (from < to)
        take(run.name, run.first_row * rows.row_elements + (from - start), to - from, from - begin);
      start += length;
      if (start >= begin + count) return;
    }
  }

  void list_weights() {
    const PickleValue* model = file_.root().find("model");
    if (model == nullptr) {
      const bool chunks = file_.root().find("model0") != nullptr;
      throw FormatError(error_text(where_, "",
                                   "the tree of a Megatron checkpoint, with \"model\" in it",
                                   chunks ? "\"model0\": a model in several chunks" : "another"));
    }
    if (!model->is(PickleKind::kDict))
      throw FormatError(error_text(where_, "model", "a dict of tensors", "another value"));
    std::set<std::string> names;
    for (size_t i = 0; i + 1 < model->items().size(); i += 2) {
      const PickleValue& key = model->items()[i];
      if (!key.is(PickleKind::kText))
        throw FormatError(error_text(where_, "model", "names of tensors", "another key"));
      const std::string& name = key.text();
      if (name.ends_with(kExtraState)) continue;
      if (!names.insert(name).second)
        throw FormatError(error_text(where_, name, "one tensor of this name", "two"));
      weights_.emplace_back(name,
                            MegatronStored{&file_, file_.tensor(model->items()[i + 1], name)});
    }
    for (const auto& [name, stored] : weights_) by_name_.emplace(name, &stored);
  }

  bool has(const std::string& name) const { return by_name_.contains(name); }

  // Names that only other models have, so that what they mean is said and not just that they are
  // extra.
  void refuse_leaks() const {
    for (const auto& [name, stored] : weights_) {
      const auto refuse = [&, &tensor = name](const std::string& why) {
        throw UnsupportedError(
            error_text(where_, tensor, "a GDN, KDA or hybrid model of Primus", why));
      };
      if (name.ends_with("layer_norm_bias") || name.ends_with("norm.bias"))
        refuse("LayerNorm with biases, which is another model");
      if (name.ends_with(".bias") && !name.ends_with("g_b_proj.bias"))
        refuse("linear layers with biases, which is another model");
      if (name.ends_with("mixer.q_proj.weight"))
        refuse("KDA with separate projections, the layout of an old branch of Primus");
      if (name.ends_with("mixer.D") || name.ends_with("mixer.norm.weight"))
        refuse("Mamba-2 mixers");
    }
  }

  StoredModelFacts facts() const {
    StoredModelFacts facts;
    for (const auto& [name, stored] : weights_) {
      if (name.ends_with("mixer.f_b_proj.weight")) facts.family = ModelFamily::kKda;
      if (name.ends_with("self_attention.linear_q_down_proj.weight")) facts.has_query_rank = true;
      constexpr std::string_view kLayers = "decoder.layers.";
      if (name.starts_with(kLayers) && name.ends_with(".self_attention.linear_kv_up_proj.weight")) {
        int64_t layer = -1;
        std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
        if (layer >= 0 && layer % 2 == 0) facts.attention_blocks.push_back(layer / 2);
      }
    }
    std::sort(facts.attention_blocks.begin(), facts.attention_blocks.end());
    facts.has_double_norms = !facts.attention_blocks.empty() && spec_ == LayerSpec::kTe;
    if (has("embedding.word_embeddings.weight"))
      facts.vocabulary_rows =
          by_name_.at("embedding.word_embeddings.weight")->tensor.shape.rank() == 2
              ? by_name_.at("embedding.word_embeddings.weight")->tensor.shape[0]
              : 0;
    return facts;
  }

  void find_config(const MegatronArgs& args, const OpenOptions& options) {
    spec_ = has("decoder.layers.1.mlp.linear_fc1.layer_norm_weight") ? LayerSpec::kTe
                                                                     : LayerSpec::kNoTe;
    const StoredModelFacts stored = facts();
    std::optional<ModelConfig> given = options.config;
    std::string from = "--config";
    for (const std::filesystem::path& folder : {folder_, folder_.parent_path()}) {
      if (given || !is_there(folder / "config.json")) continue;
      from = (folder / "config.json").string();
      given = model_config_from_hf(read_file(from, kMaxConfigBytes), from);
    }
    if (given) {
      if (args.present()) require_same_model(*given, args, stored, from);
      config_ = *given;
    } else if (args.present()) {
      config_ = config_from_args(args, stored, where_);
      if (config_.vocab_size < stored.vocabulary_rows)
        notes_.push_back(fmt::format("vocabulary: {} of {} rows, as args.vocab_size says",
                                     config_.vocab_size, stored.vocabulary_rows));
    } else {
      throw ConfigError(error_text(where_, "",
                                   "args or a config.json beside, which say what the model is",
                                   "neither; --config names a config.json or a recipe"));
    }
    if (config_.attn && config_.attn->double_norms != stored.has_double_norms) {
      const auto shown = [](bool double_norms) { return double_norms ? "true" : "false"; };
      throw ConfigError(error_text(
          from, "attn.double_norms",
          std::string(shown(stored.has_double_norms)) + ", as the checkpoint's tensors have it",
          shown(config_.attn->double_norms)));
    }
    if (const std::string problem = find_megatron_problem(config_, spec_); !problem.empty())
      throw UnsupportedError(
          error_text(from, "model", "one that Megatron with Primus has", problem));
    vocabulary_rows_ = std::max(config_.vocab_size, stored.vocabulary_rows);
  }

  static formats::TensorSpec spec_of(const std::string& name, const MegatronStored& stored) {
    return {name, stored.tensor.dtype, stored.tensor.shape};
  }

  void match() {
    std::vector<MegatronTensor> table = megatron_tensors(config_, spec_, vocabulary_rows_);
    std::vector<formats::TensorSpec> wanted, found;
    for (MegatronTensor& tensor : table) {
      fit(tensor);
      wanted.push_back({tensor.rows.name, DType::kF32, tensor.rows.shape});
    }
    for (const auto& [name, stored] : weights_) found.push_back(spec_of(name, stored));
    differences_ = checkpoint::compare_tensors(wanted, found, checkpoint::DTypeRule::kFloating);
    rows_ = rows_in_megatron(config_, table);
    for (const auto& [name, rows] : rows_) {
      // Differing dtypes within one merged tensor cannot be: a parameter comes from one.
      const auto from = by_name_.find(rows.runs.front().name);
      if (from != by_name_.end())
        tensors_.push_back({name, from->second->tensor.dtype, rows.shape});
    }
  }

  // What may differ in shape without being another model.
  void fit(MegatronTensor& tensor) {
    const auto found = by_name_.find(tensor.rows.name);
    if (found == by_name_.end()) return;
    const Shape& stored = found->second->tensor.shape;
    Shape& wanted = tensor.rows.shape;
    if (tensor.rows.name.ends_with(".A_log") && stored.num_elements() == wanted.num_elements()) {
      wanted = stored;
    }
    const bool widened =
        config_.family == ModelFamily::kKda && tensor.rows.name.ends_with("mixer.in_proj.weight") &&
        stored.rank() == 2 && stored[1] == wanted[1] && wanted[0] >= kPaddedProjectionFrom &&
        wanted[0] <= kPaddedProjectionTo && stored[0] == round_up(wanted[0], kProjectionMultiple);
    if (widened) {
      if (notes_.empty() || notes_.back().find("in_proj") == std::string::npos)
        notes_.push_back(fmt::format("in_proj: {} of {} rows, the rest is Primus's padding",
                                     wanted[0], stored[0]));
      tensor.rows.runs.push_back({"", 0, stored[0] - wanted[0]});
      wanted = stored;
    }
  }

  bool is_release() const { return folder_.filename() == "release"; }

  void read_counters(const MegatronArgs& args) {
    if (is_release()) return;  // Megatron starts anew from these
    const PickleValue* iteration = file_.root().find("iteration");
    if (iteration != nullptr && iteration->is(PickleKind::kInteger)) {
      if (iteration->integer < 0)
        throw FormatError(error_text(where_, "iteration", "a number of 0 or more",
                                     std::to_string(iteration->integer)));
      counters_.iteration = iteration->integer;
    }
    counters_.consumed_samples = args.integer("consumed_train_samples");
    counters_.global_batch_size = args.integer("global_batch_size");
    const PickleValue* scheduler = file_.root().find("opt_param_scheduler");
    const PickleValue* samples = scheduler == nullptr ? nullptr : scheduler->find("num_steps");
    // The schedule counts samples, but none of skipped steps.
    if (!counters_.consumed_samples && samples != nullptr && samples->is(PickleKind::kInteger))
      counters_.consumed_samples = samples->integer;
    if (counters_.consumed_samples && *counters_.consumed_samples < 0)
      throw FormatError(error_text(where_, "consumed samples", "a number of 0 or more",
                                   std::to_string(*counters_.consumed_samples)));
    if (is_there(folder_ / "recipe.yaml"))
      counters_.recipe = read_file(folder_ / "recipe.yaml", kMaxConfigBytes);
  }

  TorchFile file_;
  std::string where_;
  std::filesystem::path folder_;
  std::vector<std::pair<std::string, MegatronStored>> weights_;  // in the file's order
  std::map<std::string, const MegatronStored*> by_name_;
  ModelConfig config_;
  LayerSpec spec_ = LayerSpec::kNoTe;
  int64_t vocabulary_rows_ = 0;
  std::map<std::string, TensorRows> rows_;  // by Hugging Face name
  std::vector<formats::TensorSpec> tensors_;
  checkpoint::TensorDifferences differences_;
  TrainingCounters counters_;
  std::optional<MegatronOptimizer> optimizer_;
  std::vector<std::string> notes_;
};

}  // namespace

std::optional<std::filesystem::path> find_megatron_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    if (path.extension() == ".pt") return path;
    return std::nullopt;
  }
  if (auto found = in_iteration(path)) return found;
  for (const std::filesystem::path& folder : {path, path / "checkpoints"}) {
    if (!is_there(folder / kTrackerName)) continue;
    const std::string tracked = stripped(read_file(folder / kTrackerName, 64));
    if (tracked == "release") return in_iteration(folder / "release");
    int64_t step = -1;
    const auto [end, error] =
        std::from_chars(tracked.data(), tracked.data() + tracked.size(), step);
    if (error != std::errc{} || end != tracked.data() + tracked.size() || step < 0)
      throw FormatError(error_text((folder / kTrackerName).string(), "", "a step or \"release\"",
                                   "\"" + tracked + "\""));
    const std::filesystem::path iteration = checkpoint::checkpoint_path(folder, step);
    if (auto found = in_iteration(iteration)) return found;
    refuse_other_forms(iteration);
  }
  refuse_other_forms(path);
  return std::nullopt;
}

std::vector<int64_t> list_megatron_checkpoints(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  for (const int64_t step : checkpoint::list_checkpoints(folder)) {
    if (is_there(checkpoint::checkpoint_path(folder, step) / kRankFolder / kFileName))
      steps.push_back(step);
  }
  return steps;
}

std::unique_ptr<WeightSource> open_megatron(const std::filesystem::path& path,
                                            const OpenOptions& options) {
  const auto file = find_megatron_checkpoint(path);
  if (!file) {
    throw FormatError(error_text(
        path.string(), "",
        "a Megatron checkpoint: mp_rank_00/" + std::string(kFileName) + " or its tracker",
        "neither"));
  }
  return std::make_unique<MegatronSource>(*file, options);
}

void verify_megatron_checksums(const std::filesystem::path& file) {
  for (const char* name : {kFileName, "distrib_optim.pt"}) {
    const std::filesystem::path path = file.parent_path() / name;
    if (!is_there(path) || !formats::looks_like_zip(path)) continue;
    const formats::ZipArchive archive(path);
    for (const auto& [member, unused] : archive.members()) archive.check_crc32(member);
  }
}

}  // namespace deltatrain::convert
