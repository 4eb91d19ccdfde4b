#include "train/saver.h"

#include <chrono>
#include <utility>

#include "base/check.h"

namespace deltatrain::train {

namespace {

// The three flat blocks of a training state end to end in one host buffer: weights, exp_avg,
// exp_avg_sq.
struct HostState {
  std::vector<checkpoint::NamedTensor> model, optimizer;
};

HostState name_tensors(TrainingStep& step, const Buffer& host) {
  const Tensor flat = step.parameters().flat_master();
  const DType dtype = flat.dtype();
  const auto block = static_cast<size_t>(flat.num_bytes());
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

}  // namespace

Saver::Saver(std::filesystem::path folder, const CheckpointConfig& config,
             std::vector<checkpoint::CompanionFile> companions, AfterSave after_save)
    : folder_(std::move(folder)),
      config_(config),
      companions_(std::move(companions)),
      after_save_(std::move(after_save)) {}

Saver::~Saver() {
  if (running_.valid()) running_.wait();
}

void Saver::save(TrainingStep& step, const checkpoint::CheckpointState& state) {
  DELTATRAIN_CHECK(!running_.valid(), "the report of the last save was not taken");
  const auto start = std::chrono::steady_clock::now();
  const Context& context = step.context();
  const Tensor flat = step.parameters().flat_master();
  const auto block = static_cast<size_t>(flat.num_bytes());
  if (snapshot_.num_bytes() == 0) snapshot_ = Buffer(host_memory(), 3 * block);
  char* to = static_cast<char*>(snapshot_.data());
  context.device->copy_to_host(to, flat.raw(), block);
  context.device->copy_to_host(to + block, step.optimizer().flat_exp_avg().raw(), block);
  context.device->copy_to_host(to + 2 * block, step.optimizer().flat_exp_avg_sq().raw(), block);
  snapshot_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  running_ = std::async(std::launch::async, [this, state, tensors = name_tensors(step, snapshot_)] {
    checkpoint::SaveOptions options;
    options.companions = companions_;
    auto report =
        checkpoint::save_checkpoint(folder_, state, tensors.model, tensors.optimizer, options);
    if (after_save_) after_save_(report.folder);
    checkpoint::prune_checkpoints(folder_, config_.keep_last, config_.keep_every);
    return report;
  });
}

std::optional<checkpoint::SaveReport> Saver::finished(Wait wait) {
  if (!running_.valid()) return std::nullopt;
  if (wait == Wait::kNo &&
      running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return std::nullopt;
  }
  return running_.get();
}

void restore(const checkpoint::CheckpointReader& reader, TrainingStep& step) {
  const Context& context = step.context();
  const Tensor flat = step.parameters().flat_master();
  const auto block = static_cast<size_t>(flat.num_bytes());
  const Buffer host(host_memory(), 3 * block);
  const HostState tensors = name_tensors(step, host);
  reader.read_all_model(tensors.model);
  reader.read_all_optimizer(tensors.optimizer);
  const char* from = static_cast<const char*>(host.data());
  // Tensor by tensor: the padding between them stays zero.
  for (const auto& info : step.parameters().infos()) {
    const auto at = static_cast<size_t>(info.offset * dtype_bytes(flat.dtype()));
    const auto bytes = static_cast<size_t>(info.num_elements() * dtype_bytes(flat.dtype()));
    const auto copy = [&](const Tensor& to, size_t part) {
      context.device->copy_to_device(static_cast<char*>(to.raw()) + at, from + part * block + at,
                                     bytes);
    };
    copy(flat, 0);
    copy(step.optimizer().flat_exp_avg(), 1);
    copy(step.optimizer().flat_exp_avg_sq(), 2);
  }
  step.parameters().refresh_compute(context);
}

}  // namespace deltatrain::train
