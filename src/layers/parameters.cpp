#include "layers/parameters.h"

#include <unordered_set>

#include "base/check.h"
#include "ops/adamw.h"
#include "ops/elementwise.h"

namespace deltatrain::layers {

ParameterView ParameterBuilder::add(const ParameterInfo& info) {
  ParameterView view = add_group({info});
  // A lone tensor keeps its own shape, a convolution without its unit axis.
  view.shape = Shape{};
  for (int axis = 0; axis < info.checkpoint_shape.rank(); ++axis) {
    if (info.checkpoint_shape.rank() == 3 && axis == 1) continue;
    view.shape.append(info.checkpoint_shape[axis]);
  }
  return view;
}

ParameterView ParameterBuilder::add_group(const std::vector<ParameterInfo>& infos) {
  DELTATRAIN_CHECK(!infos.empty(), "empty parameter group");
  size_ = round_up(size_, ops::kDecayBlock);
  ParameterView view{size_, Shape{}, infos.front().storage};
  int64_t rows = 0;
  const int64_t columns =
      infos.front().num_elements() / std::max<int64_t>(1, infos.front().checkpoint_shape[0]);
  for (ParameterInfo info : infos) {
    DELTATRAIN_CHECK(info.storage == view.storage,
                     info.name + ": storage differs within its group");
    DELTATRAIN_CHECK(info.num_elements() == info.checkpoint_shape[0] * columns,
                     info.name + ": columns differ within its group");
    info.offset = size_;
    rows += info.checkpoint_shape[0];
    size_ += info.num_elements();
    infos_.push_back(std::move(info));
  }
  view.shape = Shape{rows, columns};
  return view;
}

ParameterStore::ParameterStore(const Context& context, std::vector<ParameterInfo> infos,
                               int64_t num_elements, Gradients gradients)
    : infos_(std::move(infos)),
      size_(round_up(num_elements, ops::kDecayBlock)),
      master_dtype_(context.statistics_dtype()) {
  std::unordered_set<std::string> names;
  for (const ParameterInfo& info : infos_) {
    DELTATRAIN_CHECK(names.insert(info.name).second, "two parameters named " + info.name);
  }
  MemoryResource& memory = context.device->memory();
  const auto bytes = static_cast<size_t>(size_ * dtype_bytes(master_dtype_));
  master_ = Buffer(memory, bytes, "the weights");
  context.device->fill_zero(master_.data(), bytes);
  if (context.activation_dtype != master_dtype_) {
    const auto compute_bytes = static_cast<size_t>(size_ * dtype_bytes(context.activation_dtype));
    compute_ = Buffer(memory, compute_bytes, "the bf16 copy of the weights");
    context.device->fill_zero(compute_.data(), compute_bytes);
  }
  if (gradients == Gradients::kAllocate) {
    gradient_ = Buffer(memory, bytes, "the gradients");
    context.device->fill_zero(gradient_.data(), bytes);
  }
}

int64_t ParameterStore::num_parameters() const {
  int64_t count = 0;
  for (const ParameterInfo& info : infos_) count += info.num_elements();
  return count;
}

int64_t ParameterStore::num_bytes() const {
  return static_cast<int64_t>(master_.num_bytes() + compute_.num_bytes() + gradient_.num_bytes());
}

namespace {
Tensor part_of(const Buffer& buffer, DType dtype, int64_t offset, const Shape& shape) {
  return buffer.tensor(dtype, shape, static_cast<size_t>(offset * dtype_bytes(dtype)));
}
}  // namespace

Tensor ParameterStore::value(const ParameterView& view) const {
  if (view.storage == Storage::kMatrix && compute_.data() != nullptr) {
    return part_of(compute_, DType::kBF16, view.offset, view.shape);
  }
  return part_of(master_, master_dtype_, view.offset, view.shape);
}

Tensor ParameterStore::gradient(const ParameterView& view) const {
  return part_of(gradient_, master_dtype_, view.offset, view.shape);
}

Tensor ParameterStore::master(const ParameterInfo& info) const {
  return part_of(master_, master_dtype_, info.offset, info.checkpoint_shape);
}

Tensor ParameterStore::gradient(const ParameterInfo& info) const {
  return part_of(gradient_, master_dtype_, info.offset, info.checkpoint_shape);
}

Tensor ParameterStore::flat_master() const { return master_.tensor(master_dtype_, {size_}); }

Tensor ParameterStore::flat_compute() const {
  return compute_.data() == nullptr ? Tensor() : compute_.tensor(DType::kBF16, {size_});
}

Tensor ParameterStore::flat_gradient() const {
  return gradient_.data() == nullptr ? Tensor() : gradient_.tensor(master_dtype_, {size_});
}

void ParameterStore::refresh_compute(const Context& context) {
  if (compute_.data() != nullptr) ops::convert(context, {.x = flat_master(), .y = flat_compute()});
}

}  // namespace deltatrain::layers
