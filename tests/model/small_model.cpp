#include "small_model.h"

#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "ops/cross_entropy.h"

namespace deltatrain::test {

std::vector<double> as_doubles(const formats::StoredTensor& stored) {
  std::vector<double> values(static_cast<size_t>(stored.shape.num_elements()));
  formats::read_tensor(stored, Tensor(values.data(), DType::kF64, stored.shape), "golden",
                       "tensor");
  return values;
}

void load_tensor(const Context& context, const formats::StoredTensor& stored, const Tensor& to,
                 const std::string& where, const std::string& name) {
  DELTATRAIN_CHECK(to.is_contiguous(), name);
  std::vector<std::byte> bytes(static_cast<size_t>(to.num_bytes()));
  formats::read_tensor(stored, Tensor(bytes.data(), to.dtype(), to.shape()), where, name);
  context.device->copy_to_device(to.raw(), bytes.data(), bytes.size());
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

SmallBatch SmallBatch::next_tokens(const formats::StoredTensor& ids_BT) {
  const int64_t B = ids_BT.shape[0], T = ids_BT.shape[1];
  SmallBatch batch;
  batch.num_sequences = B;
  batch.ids.resize(static_cast<size_t>(B * T));
  std::memcpy(batch.ids.data(), ids_BT.bytes.data(), ids_BT.bytes.size());
  batch.labels.assign(batch.ids.size(), ops::kIgnoredLabel);
  for (int64_t b = 0; b <= B; ++b) batch.offsets.push_back(static_cast<int32_t>(b * T));
  for (size_t i = 0; i + 1 < batch.ids.size(); ++i) {
    if ((i + 1) % static_cast<size_t>(T) != 0) batch.labels[i] = batch.ids[i + 1];
  }
  return batch;
}

BatchShape SmallBatch::shape() const {
  return {.num_rows = static_cast<int64_t>(ids.size()), .num_sequences = num_sequences};
}

int64_t SmallBatch::num_valid() const { return static_cast<int64_t>(ids.size()) - num_sequences; }

SmallModel::SmallModel(DeviceKind kind, const ModelConfig& config, const BatchShape& shape,
                       TrainingStep::Purpose purpose)
    : backend_(backend::make_backend(kind)) {
  backend::BackendOptions plan_options;
  plan_options.planned = kind;
  plan_ = backend::make_backend(DeviceKind::kPlan, plan_options);
  const DType dtype = kind == DeviceKind::kReference ? DType::kF64 : DType::kF32;
  context_ = Context{&backend_->device(), &backend_->table(), nullptr, dtype};
  const Context plan_context{&plan_->device(), &plan_->table(), nullptr, dtype};
  const MemoryPlan plan = TrainingStep::plan(plan_context, config, shape, purpose);
  step_ = std::make_unique<TrainingStep>(context_, config, OptimizerConfig{}, shape, plan.arena(),
                                         purpose);
}

TrainingStep::Trace SmallModel::trace(const SmallBatch& batch) {
  return step_->trace({.ids = batch.ids, .labels = batch.labels, .offsets = batch.offsets},
                      1.0 / static_cast<double>(batch.num_valid()));
}

std::vector<double> SmallModel::gradient(const layers::ParameterInfo& info) {
  return to_host(context_, step_->parameters().gradient(info));
}

}  // namespace deltatrain::test
