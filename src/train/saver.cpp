#include "train/saver.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/reporter.h"
#include "convert/convert.h"
#include "device/side_copy.h"
#include "formats/element_cast.h"
#include "train/stopwatch.h"

namespace deltatrain::train {

namespace {

// In the order of the blocks of a snapshot.
constexpr std::array kStateParts = {StatePart::kWeights, StatePart::kExpAvg, StatePart::kExpAvgSq};

// A parameter's part of the state as checkpoints name it.
std::string stored_name(StatePart part, const std::string& parameter) {
  switch (part) {
    case StatePart::kWeights:
      return parameter;
    case StatePart::kExpAvg:
      return checkpoint::exp_avg_name(parameter);
    case StatePart::kExpAvgSq:
      return checkpoint::exp_avg_sq_name(parameter);
  }
  return {};
}

struct HostState {
  std::vector<checkpoint::NamedTensor> model, optimizer;
};

// Of a snapshot: the three flat blocks of a training state end to end.
HostState name_tensors(TrainingStep& step, const Buffer& snapshot) {
  const DType dtype = step.parameters().flat_gradient().dtype();
  const auto block = static_cast<size_t>(step.state_part_bytes());
  HostState state;
  for (const layers::ParameterInfo& info : step.parameters().infos()) {
    const auto at = static_cast<size_t>(info.offset * dtype_bytes(dtype));
    for (size_t i = 0; i < kStateParts.size(); ++i) {
      auto& list = kStateParts[i] == StatePart::kWeights ? state.model : state.optimizer;
      list.push_back({stored_name(kStateParts[i], info.name),
                      snapshot.tensor(dtype, info.checkpoint_shape, i * block + at)});
    }
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
  is_wanted_ = true;
  if (preparing_.valid()) preparing_.wait();
  if (running_.valid()) running_.wait();
}

void Saver::prepare(const TrainingStep& step) {
  const auto bytes = kStateParts.size() * static_cast<size_t>(step.state_part_bytes());
  preparing_ = std::async(std::launch::async, [this, bytes] {
    Buffer buffer(host_memory(), bytes);
    constexpr size_t kPage = 4096;
    auto* const at = static_cast<volatile char*>(buffer.data());
    for (size_t i = 0; i < bytes && !is_wanted_; i += kPage) at[i] = 0;
    return buffer;
  });
}

char* Saver::snapshot(size_t bytes) {
  is_wanted_ = true;
  if (preparing_.valid()) snapshot_ = preparing_.get();
  if (snapshot_.num_bytes() == 0) snapshot_ = Buffer(host_memory(), bytes);
  return static_cast<char*>(snapshot_.data());
}

void Saver::save(TrainingStep& step, const checkpoint::CheckpointState& state) {
  DELTATRAIN_CHECK(!running_.valid(), "the report of the last save was not taken");
  const auto start = Clock::now();
  const auto block = static_cast<size_t>(step.state_part_bytes());
  Device& device = *step.context().device;
  device_ = &device;
  std::array<Tensor, kStateParts.size()> parts;
  std::unique_ptr<SideCopier> copier;
  note_.clear();
  if (step.keeps_whole_state()) {
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = step.gather_state(kStateParts[i]);
    try {
      copier = make_side_copier(device);
    } catch (const DeviceError& error) {
      note_ = error.what();
    }
  }
  if (copier == nullptr) {  // at once: what is gathered lies in a place that the next step needs
    const auto copy_start = Clock::now();
    char* to = snapshot(parts.size() * block);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Tensor part = step.gather_state(kStateParts[i]);
      device.copy_to_host(to + i * block, part.raw(), block);
    }
    copy_seconds_ = seconds_since(copy_start);
  }
  std::promise<void> copied;
  copying_ = copied.get_future();
  running_ =
      std::async(std::launch::async, [this, state, &step, block, parts, copier = std::move(copier),
                                      copied = std::move(copied)]() mutable {
        try {
          if (copier != nullptr) {
            const auto copy_start = Clock::now();
            char* to = snapshot(parts.size() * block);
            for (size_t i = 0; i < parts.size(); ++i)
              copier->copy_to_host(to + i * block, parts[i].raw(), block);
            copier.reset();
            copy_seconds_ = seconds_since(copy_start);
          }
          copied.set_value();
        } catch (...) {
          copied.set_exception(std::current_exception());
          throw;
        }
        const HostState tensors = name_tensors(step, snapshot_);
        const auto report = write(state, tensors.model, tensors.optimizer);
        checkpoint::prune_checkpoints(folder_, recipe_.checkpoint.keep_last,
                                      recipe_.checkpoint.keep_every);
        return report;
      });
  stall_seconds_ += seconds_since(start);
}

void Saver::finish_copy() {
  if (!copying_.valid()) return;
  if (copying_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    device_->synchronize();
    const auto start = Clock::now();
    copying_.wait();
    stall_seconds_ += seconds_since(start);
  }
  copying_.get();
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

std::optional<Saver::Finished> Saver::finished(Wait wait) {
  if (!running_.valid()) return std::nullopt;
  if (wait == Wait::kNo &&
      running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return std::nullopt;
  }
  const auto start = Clock::now();
  running_.wait();
  const double waited = seconds_since(start);
  copying_ = {};
  Finished finished{.report = {},
                    .stall_seconds = std::exchange(stall_seconds_, waited),
                    .previous_save_seconds = std::exchange(previous_save_seconds_, waited),
                    .note = std::move(note_)};
  finished.report = running_.get();
  finished.copy_seconds = copy_seconds_;
  return finished;
}

void take_part_in_save(TrainingStep& step) {
  for (const StatePart part : kStateParts) step.gather_state(part);
}

int64_t restore(const checkpoint::CheckpointReader& reader, TrainingStep& step,
                const StateWriter& write) {
  Device& device = *step.context().device;
  const DType dtype = step.parameters().flat_gradient().dtype();
  std::vector<formats::TensorSpec> model, optimizer;
  for (const StatePart part : kStateParts) {
    auto& list = part == StatePart::kWeights ? model : optimizer;
    for (const layers::ParameterInfo& info : step.parameters().infos())
      list.push_back({stored_name(part, info.name), dtype, info.checkpoint_shape});
  }
  reader.require_model(model);
  reader.require_optimizer(optimizer);
  int64_t bytes = 0;
  for (const StatePart part : kStateParts) {
    write(part, [&](const Tensor& flat) {
      std::vector<std::string> names;
      std::map<std::string, char*> places;
      for (const layers::ParameterInfo& info : step.parameters().infos()) {
        names.push_back(stored_name(part, info.name));
        places[names.back()] =
            static_cast<char*>(flat.raw()) + info.offset * dtype_bytes(flat.dtype());
      }
      const auto put = [&](const std::string& name, int64_t begin,
                           std::span<const std::byte> piece) {
        device.copy_to_device(places.at(name) + begin, piece.data(), piece.size());
        bytes += static_cast<int64_t>(piece.size());
      };
      if (part == StatePart::kWeights) {
        reader.stream_model(names, put);
      } else {
        reader.stream_optimizer(names, put);
      }
    });
  }
  return bytes;
}

}  // namespace deltatrain::train
