#include "decode/decoder.h"

#include <algorithm>

#include "base/check.h"
#include "model/training_step.h"
#include "ops/linear.h"

namespace deltatrain::decode {

using layers::ParameterStore;
using layers::Pass;

Decoder::Decoder(const Context& context, const Context& planning_context, const ModelConfig& config,
                 int64_t num_sequences, int64_t max_length, int64_t max_rows)
    : context_(context), model_(config), max_rows_(std::max(max_rows, num_sequences)) {
  MemoryResource& memory = context.device->memory();
  ids_ = Buffer(memory, static_cast<size_t>(max_rows_) * sizeof(int32_t));
  offsets_ = Buffer(memory, static_cast<size_t>(num_sequences + 1) * sizeof(int32_t));
  parameters_ = std::make_unique<ParameterStore>(context, model_.parameters().infos(),
                                                 model_.parameters().num_elements(),
                                                 ParameterStore::Gradients::kNone);
  state_ = std::make_unique<State>(context, model_, num_sequences, max_length);

  Arena planning;
  Context plan = planning_context;
  plan.arena = &planning;
  ParameterStore plan_parameters(plan, model_.parameters().infos(),
                                 model_.parameters().num_elements(),
                                 ParameterStore::Gradients::kNone);
  State plan_state(plan, model_, num_sequences, max_length);
  const int64_t rows = std::max<int64_t>(1, max_rows_ / num_sequences);
  for (const int64_t count : {int64_t{1}, rows}) {
    const std::vector<std::vector<int32_t>> tokens(
        static_cast<size_t>(num_sequences), std::vector<int32_t>(static_cast<size_t>(count), 0));
    std::vector<float> logits;
    run(plan, plan_parameters, plan_state, tokens, 0, static_cast<size_t>(count), &logits);
  }
  arena_ = Arena(memory, planning.peak_bytes());
  context_.arena = &arena_;
}

Decoder::~Decoder() = default;

std::vector<float> Decoder::feed(std::span<const std::vector<int32_t>> tokens) {
  DELTATRAIN_CHECK(static_cast<int64_t>(tokens.size()) == state_->num_sequences(),
                   "one token list per sequence");
  const size_t count = tokens.front().size();
  for (size_t s = 0; s < tokens.size(); ++s) {
    DELTATRAIN_CHECK(tokens[s].size() == count && count > 0,
                     "token lists of one length, at least one token");
    state_->check_room(static_cast<int64_t>(s), static_cast<int64_t>(count));
  }
  const auto piece = static_cast<size_t>(std::max<int64_t>(1, max_rows_ / state_->num_sequences()));
  std::vector<float> logits;
  for (size_t begin = 0; begin < count; begin += piece) {
    const size_t end = std::min(count, begin + piece);
    run(context_, *parameters_, *state_, tokens, begin, end, end == count ? &logits : nullptr);
  }
  return logits;
}

void Decoder::run(const Context& context, ParameterStore& parameters, State& state,
                  std::span<const std::vector<int32_t>> tokens, size_t begin, size_t end,
                  std::vector<float>* logits) {
  const auto S = static_cast<int64_t>(tokens.size());
  const auto T = static_cast<int64_t>(end - begin);
  std::vector<int32_t> ids, offsets = {0};
  for (const auto& sequence : tokens) {
    ids.insert(ids.end(), sequence.begin() + static_cast<std::ptrdiff_t>(begin),
               sequence.begin() + static_cast<std::ptrdiff_t>(end));
    offsets.push_back(narrow<int32_t>(ids.size()));
  }
  Device& device = *context.device;
  device.copy_to_device(ids_.data(), ids.data(), ids.size() * sizeof(int32_t));
  device.copy_to_device(offsets_.data(), offsets.data(), offsets.size() * sizeof(int32_t));

  const Arena::ScratchScope scope(*context.arena);
  const Pass pass{
      .context = context,
      .parameters = parameters,
      .sequences = {.offsets = offsets, .device_offsets = offsets_.tensor(DType::kI32, {S + 1})},
      .mode = Pass::Mode::kInference,
      .states = &state.layers(),
      .lengths_S = state.device_lengths()};
  const int64_t D = model_.config().hidden_size, N = model_.config().vocab_size;
  const Tensor hidden_RD = pass.scratch_activation({S * T, D});
  model_.forward(pass, ids_.tensor(DType::kI32, {S * T}), hidden_RD);
  state.advance(context, std::vector<int32_t>(static_cast<size_t>(S), narrow<int32_t>(T)));
  if (logits == nullptr) return;
  // The last row of each sequence: every T-th row, which a view with a stride of T rows names.
  const Tensor last_SD = hidden_RD.reshape({S, T * D}).columns((T - 1) * D, T * D);
  const Tensor logits_SN = pass.scratch_activation({S, N});
  ops::linear_forward(
      context, {.x_RD = last_SD, .weight_XD = parameters.value(model_.head()), .y_RX = logits_SN});
  if (context.device->kind() == DeviceKind::kPlan) return;
  const std::vector<double> values = to_host(context, logits_SN);
  logits->assign(values.begin(), values.end());
}

}  // namespace deltatrain::decode
