#include "decode/decoder.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace deltatrain::decode {

using layers::ParameterStore;
using layers::Pass;

namespace {

// S sequences of T tokens each.
std::vector<int32_t> equal_offsets(int64_t S, int64_t T) {
  std::vector<int32_t> offsets;
  for (int64_t s = 0; s <= S; ++s) offsets.push_back(narrow<int32_t>(s * T));
  return offsets;
}

}  // namespace

Decoder::Decoder(const Context& context, const Context& planning_context, const ModelConfig& config,
                 int64_t num_sequences, int64_t max_length, int64_t max_rows)
    : context_(context),
      model_(config),
      max_rows_(std::max(max_rows, num_sequences)),
      step_offset_values_(equal_offsets(num_sequences, 1)) {
  MemoryResource& memory = context.device->memory();
  const size_t offset_bytes = step_offset_values_.size() * sizeof(int32_t);
  ids_ = Buffer(memory, static_cast<size_t>(max_rows_) * sizeof(int32_t));
  offsets_ = Buffer(memory, offset_bytes);
  step_offsets_ = Buffer(memory, offset_bytes);
  context.device->copy_to_device(step_offsets_.data(), step_offset_values_.data(), offset_bytes);
  logits_ = Buffer(memory,
                   static_cast<size_t>(num_sequences * config.vocab_size *
                                       dtype_bytes(context.activation_dtype)),
                   "the logits");
  chosen_ =
      Buffer(memory, static_cast<size_t>((1 + kGreedySteps) * num_sequences) * sizeof(int32_t));
  parameters_ = std::make_unique<ParameterStore>(context, model_.parameters().infos(),
                                                 ParameterStore::Gradients::kNone);
  state_ = std::make_unique<State>(context, model_, num_sequences, max_length);

  Arena planning;
  Context plan = planning_context;
  plan.arena = &planning;
  ParameterStore plan_parameters(plan, model_.parameters().infos(),
                                 ParameterStore::Gradients::kNone);
  const State plan_state(plan, model_, num_sequences, max_length);
  const int64_t rows = std::max<int64_t>(1, max_rows_ / num_sequences);
  for (const int64_t count : {int64_t{1}, rows}) {
    const std::vector<int32_t> offsets = equal_offsets(num_sequences, count);
    run(plan, plan_parameters, plan_state, batch(offsets, count, offsets_), Head::kLogits);
  }
  arena_ = Arena(memory, planning.peak_bytes());
  context_.arena = &arena_;
}

Decoder::~Decoder() = default;

std::vector<float> Decoder::feed(std::span<const std::vector<int32_t>> tokens) {
  advance(tokens);
  const DType dtype = context_.activation_dtype;
  const auto count = static_cast<size_t>(state_->num_sequences() * model_.config().vocab_size);
  std::vector<float> logits(count);
  const auto convert_from = [&](auto element) {
    std::vector<decltype(element)> values(count);
    context_.device->copy_to_host(values.data(), logits_.data(), count * sizeof element);
    std::transform(values.begin(), values.end(), logits.begin(),
                   [](auto value) { return static_cast<float>(value); });
  };
  if (dtype == DType::kF32) {
    context_.device->copy_to_host(logits.data(), logits_.data(), count * sizeof(float));
  } else if (dtype == DType::kBF16) {
    convert_from(BFloat16{});
  } else {
    convert_from(double{});
  }
  return logits;
}

std::vector<int32_t> Decoder::feed_greedily(std::span<const std::vector<int32_t>> tokens) {
  advance(tokens);
  return read_chosen(1, 1);
}

// Rows [first, first + count) of chosen_.
std::vector<int32_t> Decoder::read_chosen(int64_t first, int64_t count) const {
  const int64_t S = state_->num_sequences();
  std::vector<int32_t> chosen(static_cast<size_t>(count * S));
  context_.device->copy_to_host(
      chosen.data(),
      chosen_.tensor(DType::kI32, {1 + kGreedySteps, S}).rows(first, first + 1).raw(),
      chosen.size() * sizeof(int32_t));
  if (std::any_of(chosen.begin(), chosen.end(), [](int32_t id) { return id < 0; })) {
    throw NumericError("sampling: logits: expected numbers with a finite largest value");
  }
  return chosen;
}

std::vector<std::vector<int32_t>> Decoder::go_on_greedily(std::span<const int32_t> tokens,
                                                          int64_t count) {
  DELTATRAIN_CHECK(static_cast<int64_t>(tokens.size()) == state_->num_sequences(),
                   "one token per sequence");
  std::vector<std::vector<int32_t>> all;
  std::vector<int32_t> next(tokens.begin(), tokens.end());
  while (static_cast<int64_t>(all.size()) < count) {
    for (size_t s = 0; s < next.size(); ++s) state_->check_room(static_cast<int64_t>(s), 1);
    const int64_t left = count - static_cast<int64_t>(all.size());
    const int64_t steps = left >= greedy_steps_at_once() ? greedy_steps_at_once() : 1;
    put_tokens(next);
    if (steps > 1) {
      run_greedy_steps();
    } else {
      step(next);
    }
    const std::vector<int32_t> chosen = read_chosen(1, steps);
    for (size_t at = 0; at < chosen.size(); at += next.size()) {
      all.emplace_back(chosen.begin() + static_cast<std::ptrdiff_t>(at),
                       chosen.begin() + static_cast<std::ptrdiff_t>(at + next.size()));
    }
    next = all.back();
  }
  return all;
}

int64_t Decoder::bytes_per_step() const {
  const int64_t parameters = parameters_->num_parameters();
  int64_t matrices = 0;
  for (const layers::ParameterInfo& info : parameters_->infos()) {
    if (info.storage == layers::Storage::kMatrix) matrices += info.num_elements();
  }
  const int64_t masters = parameters - matrices;
  const int64_t D = model_.config().hidden_size, N = model_.config().vocab_size;
  if (!model_.config().tie_word_embeddings) matrices -= (N - state_->num_sequences()) * D;
  return matrices * dtype_bytes(context_.activation_dtype) +
         masters * dtype_bytes(context_.statistics_dtype()) + state_->num_bytes_in_use();
}

// Leaves the logits after the last token of each sequence in logits_ and the most likely token in
// chosen_.
void Decoder::advance(std::span<const std::vector<int32_t>> tokens) {
  DELTATRAIN_CHECK(static_cast<int64_t>(tokens.size()) == state_->num_sequences(),
                   "one token list per sequence");
  const size_t count = tokens.front().size();
  for (size_t s = 0; s < tokens.size(); ++s) {
    DELTATRAIN_CHECK(tokens[s].size() == count && count > 0,
                     "token lists of one length, at least one token");
    state_->check_room(static_cast<int64_t>(s), static_cast<int64_t>(count));
  }
  if (count == 1) {
    std::vector<int32_t> ids;
    for (const auto& sequence : tokens) ids.push_back(sequence.front());
    put_tokens(ids);
    return step(ids);
  }
  const auto piece = static_cast<size_t>(std::max<int64_t>(1, max_rows_ / state_->num_sequences()));
  for (size_t begin = 0; begin < count; begin += piece) {
    const size_t end = std::min(count, begin + piece);
    run_piece(tokens, begin, end, end == count ? Head::kLogits : Head::kNone);
  }
}

void Decoder::put_tokens(std::span<const int32_t> tokens) {
  context_.device->copy_to_device(chosen_.data(), tokens.data(), tokens.size() * sizeof(int32_t));
}

// One token per sequence, from row 0 of chosen_ to row 1.
void Decoder::step(std::span<const int32_t> tokens) {
  const auto run_step = [this] {
    run(context_, *parameters_, *state_, step_batch(0), Head::kLogits);
  };
  // The first step makes what only a first call makes: the choice of product algorithms.
  if (has_stepped_ && recording_ == nullptr) recording_ = context_.device->record(run_step);
  if (recording_ != nullptr) {
    recording_->replay();
  } else {
    run_step();
  }
  has_stepped_ = true;
  state_->advance(context_, std::vector<int32_t>(tokens.size(), 1));
}

// kGreedySteps steps, each fed what the one before chose.
void Decoder::run_greedy_steps() {
  const auto run_steps = [this] {
    for (int64_t i = 0; i < kGreedySteps; ++i)
      run(context_, *parameters_, *state_, step_batch(i), Head::kLogits);
  };
  if (greedy_recording_ == nullptr) greedy_recording_ = context_.device->record(run_steps);
  DELTATRAIN_CHECK(greedy_recording_ != nullptr, "a device that has recorded a step");
  greedy_recording_->replay();
  state_->advance(context_, std::vector<int32_t>(static_cast<size_t>(state_->num_sequences()),
                                                 narrow<int32_t>(kGreedySteps)));
}

void Decoder::run_piece(std::span<const std::vector<int32_t>> tokens, size_t begin, size_t end,
                        Head head) {
  const auto S = static_cast<int64_t>(tokens.size());
  const auto T = static_cast<int64_t>(end - begin);
  std::vector<int32_t> ids;
  for (const auto& sequence : tokens) {
    ids.insert(ids.end(), sequence.begin() + static_cast<std::ptrdiff_t>(begin),
               sequence.begin() + static_cast<std::ptrdiff_t>(end));
  }
  const std::vector<int32_t> offsets = equal_offsets(S, T);
  Device& device = *context_.device;
  device.copy_to_device(ids_.data(), ids.data(), ids.size() * sizeof(int32_t));
  device.copy_to_device(offsets_.data(), offsets.data(), offsets.size() * sizeof(int32_t));
  run(context_, *parameters_, *state_, batch(offsets, T, offsets_), head);
  state_->advance(context_, std::vector<int32_t>(tokens.size(), narrow<int32_t>(T)));
}

Decoder::Batch Decoder::batch(const std::vector<int32_t>& offsets, int64_t tokens_per_sequence,
                              const Buffer& device_offsets) const {
  const int64_t S = static_cast<int64_t>(offsets.size()) - 1;
  const Tensor chosen = chosen_.tensor(DType::kI32, {1 + kGreedySteps, S});
  return {.sequences = {.offsets = offsets,
                        .device_offsets = device_offsets.tensor(DType::kI32, {S + 1})},
          .ids_R = ids_.tensor(DType::kI32, {S * tokens_per_sequence}),
          .logits_SN = logits_.tensor(context_.activation_dtype, {S, model_.config().vocab_size}),
          .chosen_S = chosen.rows(1, 2).reshape({S})};
}

// From row `index` of chosen_ to the next.
Decoder::Batch Decoder::step_batch(int64_t index) const {
  Batch result = batch(step_offset_values_, 1, step_offsets_);
  const int64_t S = result.sequences.num();
  const Tensor chosen = chosen_.tensor(DType::kI32, {1 + kGreedySteps, S});
  result.ids_R = chosen.rows(index, index + 1).reshape({S});
  result.chosen_S = chosen.rows(index + 1, index + 2).reshape({S});
  return result;
}

void Decoder::run(const Context& context, ParameterStore& parameters, const State& state,
                  const Batch& batch, Head head) {
  const int64_t S = batch.sequences.num(), R = batch.ids_R.size(0), D = model_.config().hidden_size;
  const int64_t T = R / S;
  const Arena::ScratchScope scope(*context.arena);
  const Pass pass{.context = context,
                  .parameters = parameters,
                  .sequences = batch.sequences,
                  .mode = Pass::Mode::kInference,
                  .states = &state.layers(),
                  .lengths_S = state.device_lengths()};
  if (pass.is_step()) return model_.step(pass, batch.ids_R, batch.logits_SN, batch.chosen_S);
  const Tensor hidden_RD = pass.scratch_activation({R, D});
  model_.forward(pass, batch.ids_R, hidden_RD);
  if (head == Head::kNone) return;
  // The last row of each sequence: every T-th row, which a view with a stride of T rows names.
  const Tensor last_SD = hidden_RD.reshape({S, T * D}).columns((T - 1) * D, T * D);
  ops::linear_forward(
      context,
      {.x_RD = last_SD, .weight_XD = parameters.value(model_.head()), .y_RX = batch.logits_SN});
  ops::row_argmax(context, {.x_RN = batch.logits_SN, .index_R = batch.chosen_S});
}

}  // namespace deltatrain::decode
