#include "decode/tile_decoder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "model/training_step.h"  // to_host
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace deltatrain::decode {

using layers::ParameterStore;
using layers::Pass;

namespace {

// Rows of a step. The CPU's products of up to 4 rows are bound by reading the weights and compute
// each row by itself, and so are those of up to 64 rows in bf16 on a GPU. Elsewhere the shape has to
// be one, and the number is a matter of speed.
int64_t rows_of_a_step(const Context& context) {
  switch (context.device->kind()) {
    case DeviceKind::kCpu:
      return 4;
    case DeviceKind::kCuda:
      return context.activation_dtype == DType::kBF16 ? 64 : 16;
    default:
      return 4;
  }
}

// Tokens that scores() asks for at a time: four choices' of every row.
constexpr int64_t kTargetsPerRow = 4;
}  // namespace

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
  moves_ = Buffer(memory, 2 * kept * sizeof(int32_t));
  targets_ = Buffer(memory, 2 * kTargetsPerRow * kept * sizeof(int32_t));
  scores_ = Buffer(memory, kTargetsPerRow * kept * statistic);
  greedy_ = Buffer(memory, kTargetsPerRow * kept * sizeof(int32_t));
  context.device->fill_zero(kept_.data(), kept_.num_bytes());
  const std::vector<int32_t> labels(kept, ops::kIgnoredLabel);
  context.device->copy_to_device(labels_.data(), labels.data(), kept * sizeof(int32_t));

  const auto make_store = [&](const Context& where) {
    return std::make_unique<ParameterStore>(where, model_.parameters().infos(),
                                            ParameterStore::Gradients::kNone);
  };
  parameters_ = make_store(context);
  state_ = make_state(sizes.num_slots + 1);
  int64_t step_slots = 0;
  if (sizes.num_step_slots > 0) {
    step_rows_ = rows_of_a_step(context);
    step_slots = round_up(sizes.num_step_slots, step_rows_);
    step_state_ = make_state(step_slots);
    const auto S = static_cast<size_t>(step_rows_);
    step_ids_ = Buffer(memory, S * sizeof(int32_t));
    step_offsets_ = Buffer(memory, (S + 1) * sizeof(int32_t));
    step_logits_ = Buffer(memory, S * N * element);
    step_lse_ = Buffer(memory, S * statistic);
    step_chosen_ = Buffer(memory, S * sizeof(int32_t));
    std::vector<int32_t> step_offsets(S + 1);
    std::iota(step_offsets.begin(), step_offsets.end(), 0);
    context.device->copy_to_device(step_offsets_.data(), step_offsets.data(),
                                   step_offsets.size() * sizeof(int32_t));
    DELTATRAIN_CHECK(step_rows_ <= sizes.logit_rows, "labels and losses of the head suffice");
  }

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
  if (sizes_.short_tile_rows > 0) {
    run(plan, *plan_parameters, plan_state, 0, {0, narrow<int32_t>(sizes_.short_tile_rows)});
    offsets.clear();
    for (int64_t s = 0; s < std::min(most, sizes_.short_tile_rows); ++s)
      offsets.push_back(narrow<int32_t>(s));
    offsets.push_back(narrow<int32_t>(sizes_.short_tile_rows));
    run(plan, *plan_parameters, plan_state, 0, offsets);
  }
  run_head(plan, *plan_parameters);
  if (step_rows_ > 0) {
    const State plan_steps(plan, model_, step_slots, sizes_.max_length);
    for (int64_t count = 1; count <= step_rows_; ++count) {
      if (padded_step(count) == count) run_step(plan, *plan_parameters, plan_steps, 0, count);
    }
  }
  run_scores(plan, *plan_parameters, kTargetsPerRow * sizes.logit_rows,
             ops::TokenScores::Rounding::kNone);
  arena_ = Arena(memory, planning.peak_bytes());
  context_.arena = &arena_;
}

TileDecoder::~TileDecoder() = default;

std::unique_ptr<State> TileDecoder::make_state(int64_t num_sequences) const {
  return std::make_unique<State>(context_, model_, num_sequences, sizes_.max_length);
}

void TileDecoder::feed(int64_t first_slot, std::span<const std::span<const int32_t>> pieces,
                       Tile tile) {
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
  const auto rows =
      static_cast<size_t>(tile == Tile::kWhole ? sizes_.tile_rows : sizes_.short_tile_rows);
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
  const int64_t R = offsets.back();
  const std::vector<layers::LayerState> states = state.layers(first_slot, S);
  const Arena::ScratchScope scope(*context.arena);
  const Pass pass{
      .context = context,
      .parameters = parameters,
      .sequences = {.offsets = offsets, .device_offsets = offsets_.tensor(DType::kI32, {S + 1})},
      .mode = Pass::Mode::kInference,
      .states = &states,
      .lengths_S = state.device_lengths().rows(first_slot, first_slot + S)};
  model_.forward(pass, ids_.tensor(DType::kI32, {R}),
                 hidden_.tensor(context.activation_dtype, {R, model_.config().hidden_size}));
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

Tensor TileDecoder::hidden_row(int64_t row) const {
  const int64_t D = model_.config().hidden_size;
  return hidden_.tensor(context_.activation_dtype, {sizes_.tile_rows, D})
      .rows(row, row + 1)
      .reshape({D});
}

void TileDecoder::keep_row(const Tensor& hidden_D, int64_t to) {
  DELTATRAIN_CHECK(to < sizes_.logit_rows && hidden_D.size(0) == model_.config().hidden_size,
                   "a row of the head");
  const auto row_bytes = static_cast<size_t>(hidden_D.num_bytes());
  context_.device->copy_on_device(
      static_cast<char*>(kept_.data()) + static_cast<size_t>(to) * row_bytes, hidden_D.raw(),
      row_bytes);
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

// The number of rows that a step of so many sequences has.
int64_t TileDecoder::padded_step(int64_t num_rows) const {
  const DeviceKind kind = context_.device->kind();
  if (kind == DeviceKind::kCpu || kind == DeviceKind::kReference) return num_rows;
  if (context_.activation_dtype != DType::kBF16) return step_rows_;
  int64_t rows = 1;
  while (rows < num_rows) rows *= 2;
  return rows;
}

TileDecoder::StepLogits TileDecoder::step(int64_t first_slot, std::span<const int32_t> ids) {
  const auto count = static_cast<int64_t>(ids.size());
  DELTATRAIN_CHECK(count > 0 && count <= step_rows_ && first_slot % step_rows_ == 0 &&
                       first_slot + step_rows_ <= step_state_->num_sequences(),
                   "a step for slots");
  const int64_t rows = padded_step(count);
  std::vector<int32_t> padded(ids.begin(), ids.end());
  padded.resize(static_cast<size_t>(rows), 0);
  for (int64_t i = 0; i < rows; ++i) {
    if (i < count) {
      step_state_->check_room(first_slot + i, 1);
    } else if (step_state_->length(first_slot + i) > 0) {
      step_state_->reset_sequence(context_, first_slot + i);  // so that its cache has room
    }
  }
  context_.device->copy_to_device(step_ids_.data(), padded.data(), padded.size() * sizeof(int32_t));
  const auto run_once = [&] { run_step(context_, *parameters_, *step_state_, first_slot, rows); };
  // The first time makes what only a first call makes: the choice of product algorithms.
  Step& step = steps_[{first_slot, rows}];
  if (step.has_run && step.recording == nullptr) step.recording = context_.device->record(run_once);
  if (step.recording != nullptr) {
    step.recording->replay();
  } else {
    run_once();
  }
  step.has_run = true;
  step_state_->advance(context_, first_slot, std::vector<int32_t>(ids.size(), 1));
  return {.logits_SN =
              step_logits_.tensor(context_.activation_dtype, {count, model_.config().vocab_size}),
          .lse_S = step_lse_.tensor(context_.statistics_dtype(), {count}),
          .chosen_S = step_chosen_.tensor(DType::kI32, {count})};
}

void TileDecoder::run_step(const Context& context, const ParameterStore& parameters,
                           const State& state, int64_t first_slot, int64_t num_rows) {
  const int64_t S = num_rows, N = model_.config().vocab_size;
  std::vector<int32_t> offsets(static_cast<size_t>(S) + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  const std::vector<layers::LayerState> states = state.layers(first_slot, S);
  const Arena::ScratchScope scope(*context.arena);
  const Pass pass{.context = context,
                  .parameters = parameters,
                  .sequences = {.offsets = offsets,
                                .device_offsets = step_offsets_.tensor(DType::kI32, {S + 1})},
                  .mode = Pass::Mode::kInference,
                  .states = &states,
                  .lengths_S = state.device_lengths().rows(first_slot, first_slot + S)};
  const Tensor logits_SN = step_logits_.tensor(context.activation_dtype, {S, N});
  model_.step(pass, step_ids_.tensor(DType::kI32, {S}), logits_SN,
              step_chosen_.tensor(DType::kI32, {S}));
  ops::cross_entropy(context, {.logits_RN = logits_SN,
                               .labels_R = labels_.tensor(DType::kI32, {S}),
                               .loss_R = loss_.tensor(context.statistics_dtype(), {S}),
                               .lse_R = step_lse_.tensor(context.statistics_dtype(), {S}),
                               .gradient = ops::CrossEntropy::Gradient::kNone});
}

void TileDecoder::keep_rows(std::span<const int32_t> rows, int64_t to) {
  if (rows.empty()) return;
  const auto count = static_cast<int64_t>(rows.size());
  DELTATRAIN_CHECK(to + count <= sizes_.logit_rows, "rows of the head");
  std::vector<int32_t> moves(rows.begin(), rows.end());
  for (int64_t i = 0; i < count; ++i) {
    const int32_t row = rows[static_cast<size_t>(i)];
    DELTATRAIN_CHECK(row >= 0 && row < sizes_.tile_rows, "rows of a pass");
    moves.push_back(narrow<int32_t>(to + i));
  }
  context_.device->copy_to_device(moves_.data(), moves.data(), moves.size() * sizeof(int32_t));
  const Tensor moves_R = moves_.tensor(DType::kI32, {2 * count});
  const int64_t D = model_.config().hidden_size;
  ops::copy_rows(context_, {.x_X = hidden_.tensor(context_.activation_dtype, {sizes_.tile_rows, D}),
                            .from_R = moves_R.rows(0, count),
                            .y_X = kept_.tensor(context_.activation_dtype, {sizes_.logit_rows, D}),
                            .to_R = moves_R.rows(count, 2 * count)});
}

// Logits of all kept rows, and the scores of the first `count` targets.
void TileDecoder::run_scores(const Context& context, const ParameterStore& parameters,
                             int64_t count, ops::TokenScores::Rounding rounding) {
  const Arena::ScratchScope scope(*context.arena);
  const int64_t R = sizes_.logit_rows, D = model_.config().hidden_size;
  const int64_t most = kTargetsPerRow * R;
  const Tensor logits_RN =
      logits_.tensor(context.activation_dtype, {R, model_.config().vocab_size});
  ops::linear_forward(context, {.x_RD = kept_.tensor(context.activation_dtype, {R, D}),
                                .weight_XD = parameters.value(model_.head()),
                                .y_RX = logits_RN});
  const Tensor targets = targets_.tensor(DType::kI32, {2 * most});
  ops::token_scores(context,
                    {.logits_RN = logits_RN,
                     .rows_T = targets.rows(0, count),
                     .ids_T = targets.rows(most, most + count),
                     .log_probability_T = scores_.tensor(context.statistics_dtype(), {count}),
                     .is_greedy_T = greedy_.tensor(DType::kI32, {count}),
                     .rounding = rounding});
}

std::vector<TileDecoder::Score> TileDecoder::scores(std::span<const int32_t> rows,
                                                    std::span<const int32_t> ids,
                                                    ops::TokenScores::Rounding rounding) {
  DELTATRAIN_CHECK(rows.size() == ids.size(), "a row and an id per token");
  Device& device = *context_.device;
  const auto most = static_cast<size_t>(kTargetsPerRow * sizes_.logit_rows);
  std::vector<Score> result;
  for (size_t begin = 0; begin < rows.size(); begin += most) {
    const size_t count = std::min(most, rows.size() - begin);
    for (size_t i = begin; i < begin + count; ++i) {
      DELTATRAIN_CHECK(rows[i] >= 0 && rows[i] < sizes_.logit_rows && ids[i] >= 0 &&
                           ids[i] < model_.config().vocab_size,
                       "kept rows and tokens of the model");
    }
    auto* const targets = static_cast<int32_t*>(targets_.data());
    device.copy_to_device(targets, rows.data() + begin, count * sizeof(int32_t));
    device.copy_to_device(targets + most, ids.data() + begin, count * sizeof(int32_t));
    run_scores(context_, *parameters_, static_cast<int64_t>(count), rounding);
    std::vector<int32_t> greedy(count);
    device.copy_to_host(greedy.data(), greedy_.data(), count * sizeof(int32_t));
    const std::vector<double> values = to_host(
        context_, scores_.tensor(context_.statistics_dtype(), {static_cast<int64_t>(count)}));
    for (size_t i = 0; i < count; ++i)
      result.push_back({static_cast<float>(values[i]), greedy[i] != 0});
  }
  return result;
}

}  // namespace deltatrain::decode
