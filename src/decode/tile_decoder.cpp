#include "decode/tile_decoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "model/training_step.h"  // to_host
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace deltatrain::decode {

using layers::ParameterStore;
using layers::Pass;

namespace {

// Rows of a step. The CPU's products of up to 4 rows are bound by reading the weights and compute
// each row by itself, and so do those of up to 256 rows in bf16 on a GPU (with gemm_uniform_rows).
// Elsewhere the shape has to be one, and the number is a matter of speed.
int64_t rows_of_a_step(const Context& context, int64_t num_slots) {
  constexpr int64_t kMostRows = 256;
  switch (context.device->kind()) {
    case DeviceKind::kCpu:
      return 4;
    case DeviceKind::kCuda:
      if (context.activation_dtype != DType::kBF16) return 16;
      return std::min(kMostRows,
                      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_slots))));
    default:
      return 4;
  }
}

// Arguments and results of token_choices for R rows, each in one block: what is copied to the device
// together, and back from it.
struct ChoiceBlocks {
  int64_t R, X;
  DType statistic;

  int64_t wish_bytes() const {
    return 3 * R * (dtype_bytes(DType::kF64) + dtype_bytes(DType::kI32));
  }
  int64_t choice_bytes() const { return ids_at() + (1 + X) * R * dtype_bytes(DType::kI32); }
  int64_t ids_at() const { return (2 + X) * R * dtype_bytes(statistic); }
  // Argument `i`: three f64, then three i32.
  Tensor wish(const Buffer& block, int64_t i) const {
    const int64_t at = i < 3 ? i * dtype_bytes(DType::kF64)
                             : 3 * dtype_bytes(DType::kF64) + (i - 3) * dtype_bytes(DType::kI32);
    return {static_cast<char*>(block.data()) + R * at, i < 3 ? DType::kF64 : DType::kI32, {R}};
  }
};

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
  moves_ = Buffer(memory, 2 * kept * sizeof(int32_t));
  targets_ = Buffer(memory, 2 * kTargetsPerRow * kept * sizeof(int32_t));
  scores_ = Buffer(memory, kTargetsPerRow * kept * statistic);
  greedy_ = Buffer(memory, kTargetsPerRow * kept * sizeof(int32_t));
  context.device->fill_zero(kept_.data(), kept_.num_bytes());

  const auto make_store = [&](const Context& where) {
    return std::make_unique<ParameterStore>(where, model_.parameters().infos(),
                                            ParameterStore::Gradients::kNone);
  };
  parameters_ = make_store(context);
  state_ = make_state(sizes.num_slots + 1);
  int64_t step_slots = 0;
  if (sizes.num_step_slots > 0) {
    step_rows_ = rows_of_a_step(context, sizes.num_step_slots);
    step_slots = round_up(sizes.num_step_slots, step_rows_);
    step_state_ = make_state(step_slots);
    const auto S = static_cast<size_t>(step_rows_);
    step_ids_ = Buffer(memory, S * sizeof(int32_t));
    step_offsets_ = Buffer(memory, (S + 1) * sizeof(int32_t));
    step_logits_ = Buffer(memory, S * N * element);
    step_chosen_ = Buffer(memory, S * sizeof(int32_t));
    std::vector<int32_t> step_offsets(S + 1);
    std::iota(step_offsets.begin(), step_offsets.end(), 0);
    context.device->copy_to_device(step_offsets_.data(), step_offsets.data(),
                                   step_offsets.size() * sizeof(int32_t));
  }
  const ChoiceBlocks blocks{std::max(sizes.logit_rows, step_rows_), kMaxTop,
                            context.statistics_dtype()};
  wishes_ = Buffer(memory, static_cast<size_t>(blocks.wish_bytes()));
  choices_ = Buffer(memory, static_cast<size_t>(blocks.choice_bytes()));

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
  run_choices(plan, logits_.tensor(plan.activation_dtype, {sizes.logit_rows, config.vocab_size}));
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
}

std::vector<TileDecoder::Choice> TileDecoder::choices(std::span<const Wish> wishes) {
  run_head(context_, *parameters_);
  return choices_of(
      logits_.tensor(context_.activation_dtype, {sizes_.logit_rows, model_.config().vocab_size}),
      wishes);
}

std::vector<TileDecoder::Choice> TileDecoder::step_choices(std::span<const Wish> wishes) {
  return choices_of(
      step_logits_.tensor(context_.activation_dtype, {step_rows_, model_.config().vocab_size}),
      wishes);
}

// With what lies in wishes_, into choices_.
void TileDecoder::run_choices(const Context& context, const Tensor& logits_RN) {
  const int64_t R = logits_RN.size(0);
  const ChoiceBlocks blocks{R, kMaxTop, context.statistics_dtype()};
  const Tensor numbers = choices_.tensor(blocks.statistic, {(2 + kMaxTop) * R});
  const Tensor ids(static_cast<char*>(choices_.data()) + blocks.ids_at(), DType::kI32,
                   {(1 + kMaxTop) * R});
  const Arena::ScratchScope scope(*context.arena);
  ops::token_choices(context,
                     {.logits_RN = logits_RN,
                      .given_R = blocks.wish(wishes_, 3),
                      .temperature_R = blocks.wish(wishes_, 0),
                      .top_p_R = blocks.wish(wishes_, 1),
                      .uniform_R = blocks.wish(wishes_, 2),
                      .top_k_R = blocks.wish(wishes_, 4),
                      .num_top_R = blocks.wish(wishes_, 5),
                      .id_R = ids.rows(0, R),
                      .logit_R = numbers.rows(0, R),
                      .lse_R = numbers.rows(R, 2 * R),
                      .top_ids_RX = ids.rows(R, ids.size(0)).reshape({R, kMaxTop}),
                      .top_logits_RX = numbers.rows(2 * R, numbers.size(0)).reshape({R, kMaxTop})});
}

std::vector<TileDecoder::Choice> TileDecoder::choices_of(const Tensor& logits_RN,
                                                         std::span<const Wish> wishes) {
  const auto R = static_cast<int64_t>(wishes.size());
  DELTATRAIN_CHECK(R > 0 && R <= logits_RN.size(0), "wishes for rows");
  const ChoiceBlocks blocks{R, kMaxTop, context_.statistics_dtype()};
  std::vector<double> numbers(3 * wishes.size());
  std::vector<int32_t> counts(3 * wishes.size());
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Wish& wish = wishes[i];
    DELTATRAIN_CHECK(
        wish.num_top >= 0 && wish.num_top <= kMaxTop && wish.given < model_.config().vocab_size,
        "a token of the model, and no more of the most likely than there is room for");
    numbers[i] = wish.sampling.temperature;
    numbers[wishes.size() + i] = wish.sampling.top_p;
    numbers[2 * wishes.size() + i] = wish.uniform;
    counts[i] = wish.given;
    counts[wishes.size() + i] =
        static_cast<int32_t>(std::min<int64_t>(wish.sampling.top_k, ops::kMaxChoiceColumns));
    counts[2 * wishes.size() + i] = static_cast<int32_t>(wish.num_top);
  }
  std::vector<char> bytes(static_cast<size_t>(blocks.wish_bytes()));
  const size_t number_bytes = numbers.size() * sizeof(double);
  std::memcpy(bytes.data(), numbers.data(), number_bytes);
  std::memcpy(bytes.data() + number_bytes, counts.data(), counts.size() * sizeof(int32_t));
  context_.device->copy_to_device(wishes_.data(), bytes.data(), bytes.size());
  run_choices(context_, logits_RN.rows(0, R));

  bytes.resize(static_cast<size_t>(blocks.choice_bytes()));
  context_.device->copy_to_host(bytes.data(), choices_.data(), bytes.size());
  const auto number = [&](int64_t i) {
    const char* const at = bytes.data() + i * dtype_bytes(blocks.statistic);
    double value = 0;
    float narrow_value = 0;
    if (blocks.statistic == DType::kF64) {
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    std::memcpy(&narrow_value, at, sizeof narrow_value);
    return static_cast<double>(narrow_value);
  };
  std::vector<int32_t> ids(static_cast<size_t>((1 + kMaxTop) * R));
  std::memcpy(ids.data(), bytes.data() + blocks.ids_at(), ids.size() * sizeof(int32_t));
  std::vector<Choice> result(wishes.size());
  for (int64_t r = 0; r < R; ++r) {
    Choice& choice = result[static_cast<size_t>(r)];
    choice = {
        .id = ids[static_cast<size_t>(r)], .logit = number(r), .lse = number(R + r), .top = {}};
    for (int64_t i = 0; i < wishes[static_cast<size_t>(r)].num_top; ++i) {
      const int32_t id = ids[static_cast<size_t>(R + r * kMaxTop + i)];
      if (id < 0) break;
      choice.top.emplace_back(id, number(2 * R + r * kMaxTop + i));
    }
  }
  return result;
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
    } else if (step_state_->has_attention() && step_state_->length(first_slot + i) > 0) {
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
