#include "decode/state.h"

#include <string>

#include "base/check.h"
#include "base/error.h"
#include "ops/elementwise.h"

namespace deltatrain::decode {

namespace {

constexpr int64_t kAlignment = 256;

constexpr Tensor layers::LayerState::*kRecurrentMembers[] = {&layers::LayerState::recurrent_SGKV,
                                                             &layers::LayerState::qk_history_SWX,
                                                             &layers::LayerState::v_history_SWX};
constexpr Tensor layers::LayerState::*kMembers[] = {
    &layers::LayerState::recurrent_SGKV, &layers::LayerState::qk_history_SWX,
    &layers::LayerState::v_history_SWX, &layers::LayerState::k_cache_SXHK,
    &layers::LayerState::v_cache_SXHV};

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
    moves_ = layout.place(DType::kI32, {3, num_sequences});
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
  storage_ =
      Buffer(context.device->memory(), static_cast<size_t>(bytes), "the states of the sequences");
  lay_out(static_cast<char*>(storage_.data()));
  reset(context);
}

int64_t State::num_bytes_in_use() const {
  int64_t bytes = 0;
  for (const layers::LayerState& layer : layers_) {
    for (const Tensor& state : {layer.recurrent_SGKV, layer.qk_history_SWX, layer.v_history_SWX})
      bytes += state.defined() ? state.num_bytes() : 0;
    for (const Tensor& cache : {layer.k_cache_SXHK, layer.v_cache_SXHV}) {
      if (!cache.defined()) continue;
      const int64_t bytes_per_token = cache.num_bytes() / (num_sequences() * max_length_);
      for (const int32_t length : lengths_) bytes += bytes_per_token * length;
    }
  }
  return bytes;
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
  advance(context, 0, num_tokens);
}

void State::advance(const Context& context, int64_t first, std::span<const int32_t> num_tokens) {
  for (size_t i = 0; i < num_tokens.size(); ++i)
    lengths_[static_cast<size_t>(first) + i] += num_tokens[i];
  put_lengths(context, first, static_cast<int64_t>(num_tokens.size()));
}

void State::put_lengths(const Context& context, int64_t first, int64_t count) {
  if (!has_attention_) return;  // nothing else reads them
  context.device->copy_to_device(device_lengths_.rows(first, first + count).raw(),
                                 lengths_.data() + first,
                                 static_cast<size_t>(count) * sizeof(int32_t));
}

std::vector<layers::LayerState> State::layers(int64_t first, int64_t count) const {
  std::vector<layers::LayerState> part = layers_;
  for (layers::LayerState& layer : part) {
    for (Tensor layers::LayerState::*const member : kMembers) {
      if ((layer.*member).defined()) layer.*member = (layer.*member).rows(first, first + count);
    }
  }
  return part;
}

void State::reset_sequence(const Context& context, int64_t sequence) {
  for (const layers::LayerState& layer : layers(sequence, 1)) {
    // Caches are read up to their length only.
    for (Tensor layers::LayerState::*const member : kRecurrentMembers) {
      const Tensor& part = layer.*member;
      if (part.defined())
        context.device->fill_zero(part.raw(), static_cast<size_t>(part.num_bytes()));
    }
  }
  lengths_[static_cast<size_t>(sequence)] = 0;
  put_lengths(context, sequence, 1);
}

void State::copy_sequence(const Context& context, const State& source, int64_t from, int64_t to) {
  DELTATRAIN_CHECK(source.layers_.size() == layers_.size() && source.max_length_ == max_length_,
                   "states of one model and length");
  const auto sources = source.layers(from, 1);
  const auto targets = layers(to, 1);
  const int64_t length = source.length(from);
  for (size_t i = 0; i < targets.size(); ++i) {
    for (Tensor layers::LayerState::*const member : kMembers) {
      const Tensor& part = sources[i].*member;
      if (!part.defined()) continue;
      const bool is_cache = member == &layers::LayerState::k_cache_SXHK ||
                            member == &layers::LayerState::v_cache_SXHV;
      const int64_t bytes = is_cache ? part.num_bytes() / part.size(1) * length : part.num_bytes();
      if (bytes == 0) continue;
      context.device->copy_on_device((targets[i].*member).raw(), part.raw(),
                                     static_cast<size_t>(bytes));
    }
  }
  lengths_[static_cast<size_t>(to)] = narrow<int32_t>(length);
  put_lengths(context, to, 1);
}

void State::copy_sequences(const Context& context, const State& source,
                           std::span<const int32_t> from, std::span<const int32_t> to) {
  DELTATRAIN_CHECK(source.layers_.size() == layers_.size() && source.max_length_ == max_length_ &&
                       &source != this,
                   "another state of one model and length");
  DELTATRAIN_CHECK(from.size() == to.size() && from.size() <= lengths_.size(), "moves for slots");
  const auto count = static_cast<int64_t>(from.size());
  if (count == 0) return;
  std::vector<int32_t> moves(3 * lengths_.size());
  const auto width = static_cast<int64_t>(lengths_.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const int32_t length = from[i] < 0 ? 0 : narrow<int32_t>(source.length(from[i]));
    moves[i] = from[i];
    moves[lengths_.size() + i] = to[i];
    moves[2 * lengths_.size() + i] = length;
    lengths_[static_cast<size_t>(to[i])] = length;
  }
  context.device->copy_to_device(moves_.raw(), moves.data(), moves.size() * sizeof(int32_t));
  const auto row = [&](int64_t r) {
    return moves_.reshape({3 * width}).rows(r * width, r * width + count);
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (Tensor layers::LayerState::*const member : kMembers) {
      const Tensor& target = layers_[i].*member;
      if (!target.defined()) continue;
      const bool is_cache = member == &layers::LayerState::k_cache_SXHK ||
                            member == &layers::LayerState::v_cache_SXHV;
      // Caches are read up to their length only.
      ops::copy_rows(context, {.x_X = source.layers_[i].*member,
                               .from_R = row(0),
                               .y_X = target,
                               .to_R = row(1),
                               .counts_R = is_cache ? row(2) : Tensor()});
    }
  }
  put_lengths(context, 0, width);
}

}  // namespace deltatrain::decode
