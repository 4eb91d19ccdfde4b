#include "layers/parameters.h"

#include <algorithm>
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
  int64_t& size = infos.front().storage == Storage::kMatrix ? matrices_ : masters_;
  size = round_up(size, ops::kDecayBlock);
  ParameterView view{size, Shape{}, infos.front().storage};
  int64_t rows = 0;
  const int64_t columns =
      infos.front().num_elements() / std::max<int64_t>(1, infos.front().checkpoint_shape[0]);
  for (ParameterInfo info : infos) {
    DELTATRAIN_CHECK(info.storage == view.storage,
                     info.name + ": storage differs within its group");
    DELTATRAIN_CHECK(info.num_elements() == info.checkpoint_shape[0] * columns,
                     info.name + ": columns differ within its group");
    info.offset = size;
    rows += info.checkpoint_shape[0];
    size += info.num_elements();
    infos_.push_back(std::move(info));
  }
  size = round_up(size, ops::kDecayBlock);
  view.shape = Shape{rows, columns};
  return view;
}

int64_t ParameterBuilder::num_elements() const { return matrices_ + masters_; }

ParameterStore::ParameterStore(const Context& context, std::vector<ParameterInfo> infos,
                               Gradients gradients, const Sharding& sharding)
    : infos_(std::move(infos)), master_dtype_(context.statistics_dtype()) {
  int64_t masters = 0;
  for (const ParameterInfo& info : infos_) {
    int64_t& end = info.storage == Storage::kMatrix ? matrices_ : masters;
    end = std::max(end, info.offset + info.num_elements());
  }
  // Every cut is the border of a block of weight decay in each of its parts.
  const int64_t quantum = ops::kDecayBlock * sharding.num_ranks;
  matrices_ = round_up(matrices_, quantum);
  size_ = matrices_ + round_up(masters, ops::kDecayBlock);
  for (ParameterInfo& info : infos_) {
    if (info.storage == Storage::kMaster) info.offset += matrices_;
  }
  const int64_t length = round_up(std::max<int64_t>(1, sharding.bucket_elements), quantum);
  // The first matrix, the embedding, has its gradient last: no range of the others reaches into it.
  const auto first = std::find_if(infos_.begin(), infos_.end(), [](const ParameterInfo& info) {
    return info.storage == Storage::kMatrix;
  });
  const int64_t border = first == infos_.end() ? 0 : round_up(first->num_elements(), quantum);
  for (int64_t cut = 0; cut < border; cut += length) cuts_.push_back(cut);
  for (int64_t cut = border; cut < matrices_; cut += length) cuts_.push_back(cut);
  cuts_.push_back(matrices_);
  if (sharding.is_sharded()) {
    int64_t state = 0;
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
      const int64_t part = (cuts_[i + 1] - cuts_[i]) / sharding.num_ranks;
      segments_.push_back({cuts_[i] + sharding.rank * part, part, state});
      state += part;
    }
    segments_.push_back({matrices_, size_ - matrices_, state});
  } else {
    segments_ = {{0, size_, 0}};
  }
  sharded_master_ = sharding.is_sharded() && context.activation_dtype != master_dtype_;
  std::unordered_set<std::string> names;
  for (const ParameterInfo& info : infos_) {
    DELTATRAIN_CHECK(names.insert(info.name).second, "two parameters named " + info.name);
  }
  MemoryResource& memory = context.device->memory();
  const auto bytes = static_cast<size_t>(size_ * dtype_bytes(master_dtype_));
  const auto master_bytes = static_cast<size_t>((sharded_master_ ? num_state_elements() : size_) *
                                                dtype_bytes(master_dtype_));
  master_ = Buffer(memory, master_bytes, "the weights");
  context.device->fill_zero(master_.data(), master_bytes);
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

int64_t ParameterStore::num_state_elements() const {
  return segments_.back().state_begin + segments_.back().count;
}

int64_t ParameterStore::flat_offset(const ParameterView& view) const {
  return view.offset + (view.storage == Storage::kMaster ? matrices_ : 0);
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
  const int64_t offset =
      sharded_master_ ? segments_.back().state_begin + view.offset : flat_offset(view);
  return part_of(master_, master_dtype_, offset, view.shape);
}

Tensor ParameterStore::gradient(const ParameterView& view) const {
  return part_of(gradient_, master_dtype_, flat_offset(view), view.shape);
}

Tensor ParameterStore::master(const ParameterInfo& info) const {
  DELTATRAIN_CHECK(!sharded_master_, info.name + ": this rank has a part of it");
  return part_of(master_, master_dtype_, info.offset, info.checkpoint_shape);
}

Tensor ParameterStore::gradient(const ParameterInfo& info) const {
  return part_of(gradient_, master_dtype_, info.offset, info.checkpoint_shape);
}

Tensor ParameterStore::flat_master() const {
  return master_.tensor(master_dtype_, {sharded_master_ ? num_state_elements() : size_});
}

Tensor ParameterStore::flat_compute() const {
  return compute_.data() == nullptr ? Tensor() : compute_.tensor(DType::kBF16, {size_});
}

Tensor ParameterStore::flat_gradient() const {
  return gradient_.data() == nullptr ? Tensor() : gradient_.tensor(master_dtype_, {size_});
}

void ParameterStore::refresh_compute(const Context& context) {
  DELTATRAIN_CHECK(!sharded_master_, "this rank has a part of the weights");
  if (compute_.data() != nullptr) ops::convert(context, {.x = flat_master(), .y = flat_compute()});
}

}  // namespace deltatrain::layers
