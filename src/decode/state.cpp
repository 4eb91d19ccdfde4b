#include "decode/state.h"

#include <string>

#include "base/check.h"
#include "base/error.h"

namespace deltatrain::decode {

namespace {

constexpr int64_t kAlignment = 256;

// Lays tensors end to end; first counts, then hands out.
class Layout {
 public:
  explicit Layout(char* base) : base_(base) {}

  Tensor place(DType dtype, const Shape& shape) {
    if (shape.rank() == 0 || shape.num_elements() == 0) return {};
    const int64_t at = used_;
    used_ += round_up(shape.num_elements() * dtype_bytes(dtype), kAlignment);
    return base_ == nullptr ? Tensor() : Tensor(base_ + at, dtype, shape);
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace

State::State(const Context& context, const Model& model, int64_t num_sequences, int64_t max_length)
    : lengths_(static_cast<size_t>(num_sequences), 0), max_length_(max_length) {
  const DType statistics = context.statistics_dtype();
  const auto shapes = model.state_shapes(num_sequences, max_length);
  const auto lay_out = [&](char* base) {
    Layout layout(base);
    layers_.clear();
    for (const auto& shape : shapes) {
      layers_.push_back({.recurrent_SGKV = layout.place(statistics, shape.recurrent),
                         .qk_history_SWX = layout.place(statistics, shape.qk_history),
                         .v_history_SWX = layout.place(statistics, shape.v_history),
                         .k_cache_SXHK = layout.place(context.activation_dtype, shape.k_cache),
                         .v_cache_SXHV = layout.place(context.activation_dtype, shape.v_cache)});
      has_attention_ = has_attention_ || shape.k_cache.rank() > 0;
    }
    device_lengths_ = layout.place(DType::kI32, {num_sequences});
    return layout.used();
  };
  const int64_t bytes = lay_out(nullptr);
  if (const int64_t free_bytes = context.device->free_memory_bytes(); bytes > free_bytes) {
    constexpr int64_t kMiB = int64_t{1} << 20;
    throw DeviceError(
        error_text("memory",
                   "state of " + std::to_string(num_sequences) + " sequences of " +
                       std::to_string(max_length) + " tokens",
                   "at most " + std::to_string(free_bytes / kMiB) + " MiB, which are free",
                   std::to_string(bytes / kMiB) + " MiB"));
  }
  storage_ = Buffer(context.device->memory(), static_cast<size_t>(bytes));
  lay_out(static_cast<char*>(storage_.data()));
  reset(context);
}

void State::reset(const Context& context) {
  context.device->fill_zero(storage_.data(), storage_.num_bytes());
  lengths_.assign(lengths_.size(), 0);
}

void State::check_room(int64_t sequence, int64_t num_tokens) const {
  if (has_attention_ && length(sequence) + num_tokens > max_length_) {
    throw ConfigError(error_text("decode", "sequence length",
                                 "at most " + std::to_string(max_length_) + " tokens",
                                 std::to_string(length(sequence) + num_tokens)));
  }
}

void State::advance(const Context& context, std::span<const int32_t> num_tokens) {
  DELTATRAIN_CHECK(num_tokens.size() == lengths_.size(), "one count per sequence");
  for (size_t s = 0; s < lengths_.size(); ++s) lengths_[s] += num_tokens[s];
  context.device->copy_to_device(device_lengths_.raw(), lengths_.data(),
                                 lengths_.size() * sizeof(int32_t));
}

}  // namespace deltatrain::decode
