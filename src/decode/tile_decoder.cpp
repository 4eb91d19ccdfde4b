#include "decode/tile_decoder.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cross_entropy.h"
#include "ops/linear.h"

namespace deltatrain::decode {

using layers::ParameterStore;
using layers::Pass;

TileDecoder::TileDecoder(const Context& context, const Context& planning_context,
                         const ModelConfig& config, const Sizes& sizes)
    : context_(context), sizes_(sizes), model_(config) {
  // The sequence that fills a pass up may be as long as the pass.
  sizes_.max_length = std::max(sizes.max_length, sizes.tile_rows);
  MemoryResource& memory = context.device->memory();
  const auto element = static_cast<size_t>(dtype_bytes(context.activation_dtype));
  const auto statistic = static_cast<size_t>(dtype_bytes(context.statistics_dtype()));
  const auto rows = static_cast<size_t>(sizes.tile_rows);
  const auto kept = static_cast<size_t>(sizes.logit_rows);
  const auto D = static_cast<size_t>(config.hidden_size),
             N = static_cast<size_t>(config.vocab_size);
  ids_ = Buffer(memory, rows * sizeof(int32_t));
  offsets_ = Buffer(memory, static_cast<size_t>(sizes.num_slots + 2) * sizeof(int32_t));
  hidden_ = Buffer(memory, rows * D * element);
  kept_ = Buffer(memory, kept * D * element);
  logits_ = Buffer(memory, kept * N * element);
  labels_ = Buffer(memory, kept * sizeof(int32_t));
  loss_ = Buffer(memory, kept * statistic);
  lse_ = Buffer(memory, kept * statistic);
  context.device->fill_zero(kept_.data(), kept_.num_bytes());
  const std::vector<int32_t> labels(kept, ops::kIgnoredLabel);
  context.device->copy_to_device(labels_.data(), labels.data(), kept * sizeof(int32_t));

  const auto make_store = [&](const Context& where) {
    return std::make_unique<ParameterStore>(where, model_.parameters().infos(),
                                            model_.parameters().num_elements(),
                                            ParameterStore::Gradients::kNone);
  };
  parameters_ = make_store(context);
  state_ = make_state(sizes.num_slots + 1);

  Arena planning;
  Context plan = planning_context;
  plan.arena = &planning;
  const auto plan_parameters = make_store(plan);
  const State plan_state(plan, model_, sizes_.num_slots + 1, sizes_.max_length);
  // One sequence, and as many as there are slots.
  std::vector<int32_t> offsets = {0, narrow<int32_t>(sizes.tile_rows)};
  run(plan, *plan_parameters, plan_state, 0, offsets);
  offsets.clear();
  const int64_t most = std::min(sizes.num_slots + 1, sizes.tile_rows);
  for (int64_t s = 0; s < most; ++s) offsets.push_back(narrow<int32_t>(s));
  offsets.push_back(narrow<int32_t>(sizes.tile_rows));
  run(plan, *plan_parameters, plan_state, 0, offsets);
  run_head(plan, *plan_parameters);
  arena_ = Arena(memory, planning.peak_bytes());
  context_.arena = &arena_;
}

TileDecoder::~TileDecoder() = default;

std::unique_ptr<State> TileDecoder::make_state(int64_t num_sequences) const {
  return std::make_unique<State>(context_, model_, num_sequences, sizes_.max_length);
}

void TileDecoder::feed(int64_t first_slot, std::span<const std::span<const int32_t>> pieces) {
  const auto count = static_cast<int64_t>(pieces.size());
  DELTATRAIN_CHECK(count > 0 && first_slot + count <= sizes_.num_slots, "pieces for slots");
  std::vector<int32_t> ids, offsets = {0}, lengths;
  for (size_t i = 0; i < pieces.size(); ++i) {
    DELTATRAIN_CHECK(!pieces[i].empty(), "a piece has tokens");
    state_->check_room(first_slot + static_cast<int64_t>(i),
                       static_cast<int64_t>(pieces[i].size()));
    ids.insert(ids.end(), pieces[i].begin(), pieces[i].end());
    offsets.push_back(narrow<int32_t>(ids.size()));
    lengths.push_back(narrow<int32_t>(pieces[i].size()));
  }
  const auto rows = static_cast<size_t>(sizes_.tile_rows);
  DELTATRAIN_CHECK(ids.size() <= rows, "pieces fit a pass");
  if (ids.size() < rows) {
    state_->reset_sequence(context_, first_slot + count);
    lengths.push_back(narrow<int32_t>(rows - ids.size()));
    ids.resize(rows, 0);
    offsets.push_back(narrow<int32_t>(rows));
  }
  context_.device->copy_to_device(ids_.data(), ids.data(), rows * sizeof(int32_t));
  context_.device->copy_to_device(offsets_.data(), offsets.data(),
                                  offsets.size() * sizeof(int32_t));
  run(context_, *parameters_, *state_, first_slot, offsets);
  state_->advance(context_, first_slot, lengths);
}

void TileDecoder::run(const Context& context, const ParameterStore& parameters, const State& state,
                      int64_t first_slot, const std::vector<int32_t>& offsets) {
  const auto S = static_cast<int64_t>(offsets.size()) - 1;
  const std::vector<layers::LayerState> states = state.layers(first_slot, S);
  const Arena::ScratchScope scope(*context.arena);
  const Pass pass{
      .context = context,
      .parameters = parameters,
      .sequences = {.offsets = offsets, .device_offsets = offsets_.tensor(DType::kI32, {S + 1})},
      .mode = Pass::Mode::kInference,
      .states = &states,
      .lengths_S = state.device_lengths().rows(first_slot, first_slot + S)};
  model_.forward(
      pass, ids_.tensor(DType::kI32, {sizes_.tile_rows}),
      hidden_.tensor(context.activation_dtype, {sizes_.tile_rows, model_.config().hidden_size}));
}

void TileDecoder::keep_rows(int64_t row, int64_t count, int64_t to) {
  DELTATRAIN_CHECK(row + count <= sizes_.tile_rows && to + count <= sizes_.logit_rows,
                   "rows of a pass and of the head");
  const auto row_bytes =
      static_cast<size_t>(model_.config().hidden_size * dtype_bytes(context_.activation_dtype));
  context_.device->copy_on_device(
      static_cast<char*>(kept_.data()) + static_cast<size_t>(to) * row_bytes,
      static_cast<const char*>(hidden_.data()) + static_cast<size_t>(row) * row_bytes,
      static_cast<size_t>(count) * row_bytes);
}

void TileDecoder::run_head(const Context& context, const ParameterStore& parameters) {
  const Arena::ScratchScope scope(*context.arena);
  const int64_t R = sizes_.logit_rows, N = model_.config().vocab_size;
  const Tensor logits_RN = logits_.tensor(context.activation_dtype, {R, N});
  ops::linear_forward(
      context, {.x_RD = kept_.tensor(context.activation_dtype, {R, model_.config().hidden_size}),
                .weight_XD = parameters.value(model_.head()),
                .y_RX = logits_RN});
  ops::cross_entropy(context, {.logits_RN = logits_RN,
                               .labels_R = labels_.tensor(DType::kI32, {R}),
                               .loss_R = loss_.tensor(context.statistics_dtype(), {R}),
                               .lse_R = lse_.tensor(context.statistics_dtype(), {R}),
                               .gradient = ops::CrossEntropy::Gradient::kNone});
}

TileDecoder::Logits TileDecoder::logits() {
  run_head(context_, *parameters_);
  return {
      logits_.tensor(context_.activation_dtype, {sizes_.logit_rows, model_.config().vocab_size}),
      lse_.tensor(context_.statistics_dtype(), {sizes_.logit_rows})};
}

}  // namespace deltatrain::decode
