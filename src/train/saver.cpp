#include "train/saver.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/reporter.h"
#include "convert/convert.h"
#include "formats/element_cast.h"

namespace deltatrain::train {

namespace {

// In the order of the blocks of a snapshot.
constexpr std::array kStateParts = {StatePart::kWeights, StatePart::kExpAvg, StatePart::kExpAvgSq};

// The three flat blocks of a training state end to end
// in one host buffer: weights, exp_avg, exp_avg_sq.
struct HostState {
  std::vector<checkpoint::NamedTensor> model, optimizer;
};

HostState name_tensors(TrainingStep& step, const Buffer& host) {
  const DType dtype = step.parameters().flat_gradient().dtype();
  const auto block = static_cast<size_t>(step.state_part_bytes());
  HostState state;
  for (const layers::ParameterInfo& info : step.parameters().infos()) {
    const auto at = static_cast<size_t>(info.offset * dtype_bytes(dtype));
    const Shape& shape = info.checkpoint_shape;
    state.model.push_back({info.name, host.tensor(dtype, shape, at)});
    state.optimizer.push_back(
        {checkpoint::exp_avg_name(info.name), host.tensor(dtype, shape, block + at)});
    state.optimizer.push_back(
        {checkpoint::exp_avg_sq_name(info.name), host.tensor(dtype, shape, 2 * block + at)});
  }
  return state;
}

// A snapshot as weights to be written in another form.
class SnapshotSource : public convert::WeightSource {
 public:
  SnapshotSource(const Recipe& recipe, const std::string& yaml,
                 const checkpoint::CheckpointState& state,
                 const std::vector<checkpoint::NamedTensor>& model,
                 const std::vector<checkpoint::NamedTensor>& optimizer,
                 std::filesystem::path folder)
      : config_(recipe.model), folder_(std::move(folder)) {
    for (const checkpoint::NamedTensor& named : model)
      tensors_.push_back({named.name, named.tensor.dtype(), named.tensor.shape()});
    std::sort(tensors_.begin(), tensors_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    for (const auto* list : {&model, &optimizer}) {
      for (const checkpoint::NamedTensor& named : *list) by_name_.emplace(named.name, named.tensor);
    }
    counters_ = {state.step, state.consumed_samples, std::stoll(state.extra.at("completed_steps")),
                 recipe.train.global_batch_size, yaml};
  }

  std::string describe() const override { return "step " + std::to_string(step()); }
  int64_t step() const override { return counters_.iteration; }
  const std::filesystem::path& folder() const override { return folder_; }
  const ModelConfig& config() const override { return config_; }
  const std::vector<formats::TensorSpec>& tensors() const override { return tensors_; }
  void release(const std::string&) const override {}
  bool has_optimizer() const override { return true; }
  convert::TrainingCounters counters() const override { return counters_; }

  void read(const std::string& name, int64_t begin, int64_t count, void* out) const override {
    const Tensor& tensor = by_name_.at(name);
    const int64_t width = dtype_bytes(tensor.dtype());
    std::memcpy(out, static_cast<const char*>(tensor.raw()) + begin * width,
                static_cast<size_t>(count * width));
  }

  void read_state(convert::StatePart part, const std::string& name, int64_t begin, int64_t count,
                  float* out) const override {
    const Tensor& tensor =
        by_name_.at(part == convert::StatePart::kMaster   ? name
                    : part == convert::StatePart::kExpAvg ? checkpoint::exp_avg_name(name)
                                                          : checkpoint::exp_avg_sq_name(name));
    const int64_t width = dtype_bytes(tensor.dtype());
    formats::cast_elements(tensor.dtype(), static_cast<const char*>(tensor.raw()) + begin * width,
                           DType::kF32, out, count);
  }

 private:
  ModelConfig config_;
  std::filesystem::path folder_;
  std::vector<formats::TensorSpec> tensors_;
  std::map<std::string, Tensor> by_name_;
  convert::TrainingCounters counters_;
};

}  // namespace

Saver::Saver(std::filesystem::path folder, const Recipe& recipe, std::string yaml,
             std::vector<checkpoint::CompanionFile> companions)
    : folder_(std::move(folder)),
      recipe_(recipe),
      yaml_(std::move(yaml)),
      companions_(std::move(companions)) {}

Saver::~Saver() {
  if (preparing_.valid()) preparing_.wait();
  if (running_.valid()) running_.wait();
}

void Saver::prepare(TrainingStep& step) {
  const auto bytes = 3 * static_cast<size_t>(step.state_part_bytes());
  preparing_ = std::async(std::launch::async, [bytes] {
    Buffer buffer(host_memory(), bytes);
    std::memset(buffer.data(), 0, bytes);
    return buffer;
  });
}

void Saver::save(TrainingStep& step, const checkpoint::CheckpointState& state) {
  DELTATRAIN_CHECK(!running_.valid(), "the report of the last save was not taken");
  const auto start = std::chrono::steady_clock::now();
  const auto block = static_cast<size_t>(step.state_part_bytes());
  if (preparing_.valid()) snapshot_ = preparing_.get();
  if (snapshot_.num_bytes() == 0) snapshot_ = Buffer(host_memory(), 3 * block);
  char* to = static_cast<char*>(snapshot_.data());
  for (size_t i = 0; i < kStateParts.size(); ++i) step.read_state(kStateParts[i], to + i * block);
  snapshot_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  running_ = std::async(std::launch::async, [this, state, tensors = name_tensors(step, snapshot_)] {
    const auto report = write(state, tensors.model, tensors.optimizer);
    checkpoint::prune_checkpoints(folder_, recipe_.checkpoint.keep_last,
                                  recipe_.checkpoint.keep_every);
    return report;
  });
}

checkpoint::SaveReport Saver::write(const checkpoint::CheckpointState& state,
                                    const std::vector<checkpoint::NamedTensor>& model,
                                    const std::vector<checkpoint::NamedTensor>& optimizer) const {
  checkpoint::SaveOptions options;
  options.companions = companions_;
  const bool native = recipe_.checkpoint.format == CheckpointFormat::kNative;
  if (native && !recipe_.checkpoint.hf)
    return checkpoint::save_checkpoint(folder_, state, model, optimizer, options);
  const SnapshotSource source(recipe_, yaml_, state, model, optimizer,
                              checkpoint::checkpoint_path(folder_, state.step));
  checkpoint::SaveReport report;
  if (native) {
    report = checkpoint::save_checkpoint(folder_, state, model, optimizer, options);
  } else {
    const CheckpointConfig& config = recipe_.checkpoint;
    const convert::MegatronTarget target{
        config.megatron_spec == MegatronLayers::kTe ? convert::LayerSpec::kTe
                                                    : convert::LayerSpec::kNoTe,
        config.megatron_args == MegatronArgsKind::kNamespace ? convert::MegatronArgsMode::kNamespace
                                                             : convert::MegatronArgsMode::kNone,
        DType::kBF16};
    report = convert::save_megatron_checkpoint(source, target, folder_, options,
                                               [](const std::string&) {});
  }
  if (recipe_.checkpoint.hf) {
    convert::TargetOptions target;
    target.to = report.folder / "hf";
    target.dtype = recipe_.train.precision == Precision::kBf16 ? DType::kBF16 : DType::kF32;
    for (const convert::WrittenFile& file :
         convert::write_model(source, target, silent_reporter()).files) {
      report.bytes += static_cast<int64_t>(std::filesystem::file_size(target.to / file.path));
    }
  }
  return report;
}

std::optional<checkpoint::SaveReport> Saver::finished(Wait wait) {
  if (!running_.valid()) return std::nullopt;
  if (wait == Wait::kNo &&
      running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return std::nullopt;
  }
  return running_.get();
}

void take_part_in_save(TrainingStep& step) {
  for (const StatePart part : kStateParts) step.read_state(part, nullptr);
}

void restore(const checkpoint::CheckpointReader& reader, TrainingStep& step,
             const StateWriter& write) {
  const Context& context = step.context();
  const auto block = static_cast<size_t>(step.state_part_bytes());
  const Buffer host(host_memory(), 3 * block);
  const HostState tensors = name_tensors(step, host);
  reader.read_all_model(tensors.model);
  reader.read_all_optimizer(tensors.optimizer);
  const char* from = static_cast<const char*>(host.data());
  for (size_t i = 0; i < kStateParts.size(); ++i) {
    write(kStateParts[i], [&](const Tensor& flat) {
      // Tensor by tensor: the padding between them stays zero.
      for (const auto& info : step.parameters().infos()) {
        const auto at = static_cast<size_t>(info.offset * dtype_bytes(flat.dtype()));
        const auto bytes = static_cast<size_t>(info.num_elements() * dtype_bytes(flat.dtype()));
        context.device->copy_to_device(static_cast<char*>(flat.raw()) + at, from + i * block + at,
                                       bytes);
      }
    });
  }
}

}  // namespace deltatrain::train
