#include "convert/convert.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "checkpoint/checkpoint_writer.h"
#include "convert/companion_files.h"
#include "convert/finite_source.h"
#include "convert/parameter_table.h"
#include "convert/weight_source.h"
#include "formats/element_cast.h"
#include "formats/safetensors.h"

namespace deltatrain::convert {

namespace {

// A folder that fills under a temporary name and takes its place at commit().
class FolderInTheMaking {
 public:
  explicit FolderInTheMaking(std::filesystem::path target) : target_(std::move(target)) {
    if (target_.filename().empty()) target_ = target_.parent_path();  // "out/"
    temporary_ = target_;
    temporary_ += ".tmp-" + std::to_string(::getpid());
    std::error_code error;
    std::filesystem::create_directories(temporary_, error);
    if (error) fail(temporary_, "cannot be created", error);
  }
  ~FolderInTheMaking() {
    if (committed_) return;
    std::error_code ignored;
    std::filesystem::remove_all(temporary_, ignored);
  }
  FolderInTheMaking(const FolderInTheMaking&) = delete;
  FolderInTheMaking& operator=(const FolderInTheMaking&) = delete;

  const std::filesystem::path& path() const { return temporary_; }

  void commit() {
    std::error_code error;
    std::filesystem::rename(temporary_, target_, error);  // replaces an empty folder
    if (error) fail(target_, "cannot be renamed to", error);
    committed_ = true;
    sync_directory(target_.parent_path());
  }

 private:
  [[noreturn]] static void fail(const std::filesystem::path& path, const char* what,
                                const std::error_code& error) {
    throw FileError(path.string() + ": " + what + ": " + error.message(), ExitCode::kEnvironment);
  }

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

void require_unused(const std::filesystem::path& target) {
  std::error_code error;
  if (!std::filesystem::exists(target, error)) return;
  if (!std::filesystem::is_directory(target, error)) {
    throw ConfigError(
        error_text(target.string(), "", "a folder that is empty or doesn't exist", "a file"));
  }
  if (!std::filesystem::is_empty(target, error)) {
    throw ConfigError(error_text(target.string(), "", "a folder that is empty or doesn't exist",
                                 "one with files in it; nothing is written over"));
  }
}

std::string file_sha256(const std::filesystem::path& path) {
  const MappedFile file(path);
  constexpr size_t kBlock = 8 << 20;
  Sha256 digest;
  for (size_t at = 0; at < file.bytes().size(); at += kBlock) {
    const auto part = file.bytes().subspan(at, std::min(kBlock, file.bytes().size() - at));
    digest.update(part.data(), part.size());
    drop_pages(part);
  }
  return digest.hex();
}

std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::filesystem::path extension = entry.path().extension();
    if (extension == ".safetensors" || extension == ".pt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

checkpoint::CheckpointState native_state(const WeightSource& source) {
  const TrainingCounters counters = source.counters();
  checkpoint::CheckpointState state;
  state.step = counters.iteration;
  state.consumed_samples = counters.consumed_samples.value_or(0);
  const auto keep = [&state](const char* key, const auto& value) {
    if (value) state.extra[key] = nlohmann::json(*value).dump();
  };
  keep("completed_steps", counters.completed_steps);
  keep("global_batch_size", counters.global_batch_size);
  keep("recipe", counters.recipe);
  return state;
}

// Writes the tensors of `source` and the companion files into `target`, which is empty. With the
// optimizer's state the weights are the masters, as `train` saves and wants them.
void write_native(const WeightSource& source, const std::vector<formats::TensorSpec>& specs,
                  std::vector<checkpoint::CompanionFile> companions, int64_t max_file_bytes,
                  bool optimizer, const std::filesystem::path& target,
                  const std::function<void(const std::string&)>& on_tensor) {
  checkpoint::SaveOptions save;
  save.max_file_bytes = max_file_bytes;
  save.companions = std::move(companions);
  std::vector<formats::TensorSpec> moments;
  for (const formats::TensorSpec& spec : specs) {
    if (!optimizer) break;
    moments.push_back({checkpoint::exp_avg_name(spec.name), DType::kF32, spec.shape});
    moments.push_back({checkpoint::exp_avg_sq_name(spec.name), DType::kF32, spec.shape});
  }
  checkpoint::CheckpointWriter writer(target, native_state(source), specs, moments, save);
  for (size_t i = 0; i < specs.size(); ++i) {
    on_tensor(specs[i].name);
    const std::string& name = specs[i].name;
    if (!optimizer) {
      for_each_block(
          source, source.tensors()[i], specs[i].dtype,
          [&](const void* data, int64_t bytes) { writer.append_model(name, data, bytes); });
      continue;
    }
    for_each_state_block(
        source, StatePart::kMaster, specs[i],
        [&](const float* data, int64_t count) { writer.append_model(name, data, 4 * count); });
    for (const auto& [part, moment] :
         {std::pair{StatePart::kExpAvg, checkpoint::exp_avg_name(name)},
          std::pair{StatePart::kExpAvgSq, checkpoint::exp_avg_sq_name(name)}}) {
      for_each_state_block(source, part, specs[i], [&, &to = moment](const float* data, int64_t n) {
        writer.append_optimizer(to, data, 4 * n);
      });
    }
  }
  writer.commit();
}

void write_megatron(const WeightSource& source, const TargetOptions& options, DType dtype,
                    const std::vector<checkpoint::CompanionFile>& companions,
                    const std::filesystem::path& target,
                    const std::function<void(const std::string&)>& on_tensor) {
  checkpoint::SaveOptions save;
  save.companions = companions;
  save_megatron_checkpoint(source, {options.layer_spec, options.megatron_args, dtype}, target, save,
                           on_tensor);
}

void write_hugging_face(const WeightSource& source, const std::vector<formats::TensorSpec>& specs,
                        const std::vector<checkpoint::CompanionFile>& companions,
                        int64_t max_file_bytes, const std::filesystem::path& target,
                        const std::function<void(const std::string&)>& on_tensor) {
  formats::SafetensorsFolderWriter writer(target, "model", specs, max_file_bytes);
  for (size_t i = 0; i < specs.size(); ++i) {
    on_tensor(specs[i].name);
    int64_t offset = 0;
    for_each_block(source, source.tensors()[i], specs[i].dtype,
                   [&](const void* data, int64_t bytes) {
                     writer.write(specs[i].name, offset, data, bytes);
                     offset += bytes;
                   });
  }
  writer.commit();
  for (const checkpoint::CompanionFile& file : companions) {
    write_file_atomically(target / file.name, file.content);
  }
}

// Reads the result as a user would and compares it with the source, bit for bit after the change of
// dtype.
void check_round_trip(const WeightSource& source, const std::vector<formats::TensorSpec>& specs,
                      const std::filesystem::path& result, const std::string& shown, bool optimizer,
                      const std::function<void(const std::string&)>& on_tensor) {
  const auto back = open_weights(result);
  const auto fail = [&shown](const std::string& what, const std::string& expected,
                             const std::string& got) {
    throw CheckFailedError(error_text(shown, "round trip: " + what, expected, got));
  };
  if (!(back->config() == source.config())) fail("config.json", "the source's model", "another");
  const auto differences =
      checkpoint::compare_tensors(specs, back->tensors(), checkpoint::DTypeRule::kEqual);
  if (!differences.none()) fail("tensors", "those written", differences.summary());
  if (optimizer != back->has_optimizer()) fail("optimizer", "its state", "none");
  std::vector<std::byte> got;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string& name = specs[i].name;
    on_tensor(name);
    int64_t begin = 0;
    const auto compare = [&](const void* data, int64_t bytes) {
      got.resize(static_cast<size_t>(bytes));
      const int64_t count = bytes / dtype_bytes(specs[i].dtype);
      back->read(name, begin, count, got.data());
      if (std::memcmp(got.data(), data, static_cast<size_t>(bytes)) != 0)
        fail(name, "the source's values", "others");
      begin += count;
    };
    if (!optimizer) {
      for_each_block(source, source.tensors()[i], specs[i].dtype, compare);
      back->release(name);
      continue;
    }
    std::vector<std::byte> narrowed;
    for_each_state_block(source, StatePart::kMaster, specs[i], [&](const float* data, int64_t n) {
      narrowed.resize(static_cast<size_t>(n * dtype_bytes(specs[i].dtype)));
      formats::cast_elements(DType::kF32, data, specs[i].dtype, narrowed.data(), n);
      compare(narrowed.data(), static_cast<int64_t>(narrowed.size()));
    });
    for (const StatePart part : {StatePart::kMaster, StatePart::kExpAvg, StatePart::kExpAvgSq}) {
      int64_t at = 0;
      std::vector<float> stored;
      for_each_state_block(source, part, specs[i], [&](const float* data, int64_t n) {
        stored.resize(static_cast<size_t>(n));
        back->read_state(part, name, at, n, stored.data());
        if (std::memcmp(stored.data(), data, static_cast<size_t>(4 * n)) != 0)
          fail(name + " of the optimizer", "the source's values", "others");
        at += n;
      });
    }
    back->release(name);
  }
}

// The dtype of all weights in a Megatron file.
DType megatron_dtype(const WeightSource& source, const std::optional<DType>& wanted) {
  if (wanted) return *wanted;
  if (writes_optimizer(source)) return DType::kBF16;
  const auto& tensors = source.tensors();
  const bool narrow = std::all_of(tensors.begin(), tensors.end(),
                                  [](const auto& spec) { return spec.dtype == DType::kBF16; });
  return narrow ? DType::kBF16 : DType::kF32;
}

// Whether the optimizer's state goes along; says so when it is left behind.
bool takes_optimizer(const WeightSource& source, const TargetOptions& options, Reporter& reporter) {
  if (!source.has_optimizer() || options.format == TargetFormat::kHuggingFace) return false;
  if (options.format == TargetFormat::kNative) {
    if (!options.dtype || *options.dtype == DType::kF32) return true;
    reporter.warning("convert", "the optimizer's state is left out: it belongs to f32 weights");
    return false;
  }
  if (writes_optimizer(source)) return true;
  reporter.warning("convert",
                   "the optimizer's state is left out: there is no recipe beside it that says its "
                   "settings, which Megatron stores with it");
  return false;
}

}  // namespace

std::string find_export_problem(const ModelConfig& config, TargetFormat format, LayerSpec spec) {
  if (format == TargetFormat::kNative) return "";
  if (config.attn && config.attn->double_norms) {
    return "latent attention of Megatron under Transformer Engine, whose rank norms are applied "
           "twice, one after the other: no single norm equals that, so only a native checkpoint "
           "holds this model";
  }
  return format == TargetFormat::kMegatron ? find_megatron_problem(config, spec) : "";
}

ConvertReport write_model(const WeightSource& source, const TargetOptions& options,
                          Reporter& reporter) {
  require_unused(options.to);
  ConvertReport report;
  report.source = source.describe();
  report.differences = source.differences();
  report.num_tensors = static_cast<int64_t>(source.tensors().size());
  for (const formats::TensorSpec& spec : source.tensors())
    report.num_parameters += spec.shape.num_elements();
  if (!report.differences.none()) return report;
  for (const std::string& note : source.notes()) reporter.message("convert", note);
  if (const std::string problem =
          find_export_problem(source.config(), options.format, options.layer_spec);
      !problem.empty())
    throw UnsupportedError(error_text(options.to.string(), "model", "one of that form", problem));
  if (options.format == TargetFormat::kMegatron) {
    if (source.config().attn && source.config().attn->norm_eps != source.config().norm_eps)
      reporter.warning("convert",
                       fmt::format("Megatron has one epsilon for all norms, {}: the norms "
                                   "on the ranks of latent attention have {} here",
                                   source.config().norm_eps, source.config().attn->norm_eps));
  }

  report.optimizer = takes_optimizer(source, options, reporter);
  std::vector<formats::TensorSpec> specs = source.tensors();
  for (formats::TensorSpec& spec : specs) {
    const DType stored =
        report.optimizer && options.format == TargetFormat::kNative ? DType::kF32 : spec.dtype;
    spec.dtype = options.format == TargetFormat::kMegatron ? megatron_dtype(source, options.dtype)
                                                           : options.dtype.value_or(stored);
    if (report.optimizer) continue;  // the masters keep every bit
    report.lossy = report.lossy || dtype_bytes(spec.dtype) < dtype_bytes(stored) ||
                   (stored == DType::kF16 && spec.dtype == DType::kBF16);
  }
  const DType dtype = std::find_if(specs.begin(), specs.end(), [](const auto& spec) {
                        return spec.name == "model.embeddings.weight";
                      })->dtype;
  auto companions = model_files(source.config(), dtype, source.folder());
  const std::filesystem::path tokenizer = options.tokenizer.value_or(source.folder());
  const auto of_tokenizer = tokenizer.empty() ? std::vector<checkpoint::CompanionFile>{}
                                              : tokenizer_files(tokenizer, source.config());
  if (of_tokenizer.empty() && options.tokenizer) {
    throw ConfigError(error_text(tokenizer.string(), "", "a tokenizer's files", "none"));
  }
  if (of_tokenizer.empty()) {
    reporter.warning("convert",
                     "no tokenizer found beside the weights; --tokenizer names another place");
  }
  companions.insert(companions.end(), of_tokenizer.begin(), of_tokenizer.end());
  if (const auto recipe = source.counters().recipe;
      recipe && options.format != TargetFormat::kHuggingFace) {
    companions.push_back({"recipe.yaml", *recipe});
  }

  FolderInTheMaking folder(options.to);
  const auto total = static_cast<int64_t>(specs.size()) * (options.round_trip ? 2 : 1);
  int64_t done = 0;
  const auto on_tensor = [&](const std::string& name) {
    reporter.progress("convert", done++, total, "tensors", name);
  };
  const FiniteSource checked(source, specs);
  if (options.format == TargetFormat::kNative) {
    write_native(checked, specs, companions, options.max_file_bytes, report.optimizer,
                 folder.path(), on_tensor);
  } else if (options.format == TargetFormat::kMegatron) {
    write_megatron(checked, options, dtype, companions, folder.path(), on_tensor);
  } else {
    write_hugging_face(checked, specs, companions, options.max_file_bytes, folder.path(),
                       on_tensor);
  }
  if (options.round_trip) {
    check_round_trip(source, specs, folder.path(), options.to.string(), report.optimizer,
                     on_tensor);
    report.round_trip_exact = true;
  }
  reporter.progress("convert", total, total, "tensors", "");
  for (const auto& path : weight_files(folder.path())) {
    report.files.push_back({path.lexically_relative(folder.path()), file_sha256(path)});
  }
  folder.commit();
  report.written = true;
  return report;
}

ConvertReport convert_model(const std::filesystem::path& from, const TargetOptions& target,
                            Reporter& reporter, const OpenOptions& open) {
  require_unused(target.to);  // before a source of gigabytes is looked at
  return write_model(*open_weights(from, open), target, reporter);
}

std::string to_text(const ConvertReport& report) {
  const checkpoint::TensorDifferences& differences = report.differences;
  std::string text =
      fmt::format("{} tensors, {} parameters, {} missing, {} extra, {} shape mismatches\n",
                  report.num_tensors, report.num_parameters, differences.missing.size(),
                  differences.extra.size(), differences.mismatched.size());
  for (const std::string& name : differences.missing) text += "missing: " + name + "\n";
  for (const std::string& name : differences.extra) text += "extra: " + name + "\n";
  for (const std::string& line : differences.mismatched) text += "shape mismatch: " + line + "\n";
  if (report.optimizer) text += "with the optimizer's state\n";
  if (report.round_trip_exact) {
    text += report.lossy ? "round trip: every bit equal after the change of dtype, which rounds\n"
                         : "round trip: every bit equal\n";
  }
  for (const WrittenFile& file : report.files)
    text += "sha256 " + file.sha256 + "  " + file.path.string() + "\n";
  return text;
}

std::string to_json(const ConvertReport& report) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const WrittenFile& file : report.files) {
    files.push_back({{"path", file.path.string()}, {"sha256", file.sha256}});
  }
  const nlohmann::ordered_json root = {{"source", report.source},
                                       {"written", report.written},
                                       {"num_tensors", report.num_tensors},
                                       {"num_parameters", report.num_parameters},
                                       {"missing", report.differences.missing},
                                       {"extra", report.differences.extra},
                                       {"shape_mismatches", report.differences.mismatched},
                                       {"lossy", report.lossy},
                                       {"optimizer", report.optimizer},
                                       {"round_trip_exact", report.round_trip_exact},
                                       {"files", files}};
  return root.dump(1) + "\n";
}

}  // namespace deltatrain::convert
