#include "model/training_step.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "loss/lm_head.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/op_table.h"

namespace deltatrain {

using layers::Pass;

namespace {

constexpr int64_t kProgramBytes = int64_t{36} << 20;  // MemoryPlan::program

Context with_arena(const Context& context, Arena* arena) {
  Context copy = context;
  copy.arena = arena;
  return copy;
}

layers::ParameterStore::Gradients gradients_for(TrainingStep::Purpose purpose) {
  const bool needed =
      purpose == TrainingStep::Purpose::kTrain || purpose == TrainingStep::Purpose::kGradients;
  return needed ? layers::ParameterStore::Gradients::kAllocate
                : layers::ParameterStore::Gradients::kNone;
}

void note_part(const Context& context, std::string_view name) {
  if (ops::OpObserver* observer = context.table->observer) observer->part(name);
}

optim::FlatParameters flat_parameters(const layers::ParameterStore& store) {
  optim::FlatParameters flat{
      store.flat_master(), store.flat_compute(), store.flat_gradient(), {}, store.segments()};
  for (const layers::ParameterInfo& info : store.infos()) {
    flat.ranges.push_back({info.name, info.checkpoint_shape, info.offset});
  }
  return flat;
}

}  // namespace

TrainingStep::TrainingStep(const Context& context, const ModelConfig& model,
                           const OptimizerConfig& optimizer, const BatchShape& shape,
                           int64_t arena_bytes, Purpose purpose, const StepRanks& ranks)
    : context_(context),
      arena_(context.device->kind() == DeviceKind::kPlan
                 ? Arena()
                 : Arena(context.device->memory(), static_cast<size_t>(arena_bytes))),
      model_(model),
      shape_(shape),
      purpose_(purpose),
      rank_(ranks.sharding.rank),
      parameters_(context, model_.parameters().infos(), gradients_for(purpose), ranks.sharding) {
  context_ = with_arena(context, &arena_);
  MemoryResource& memory = context_.device->memory();
  ids_ = Buffer(memory, static_cast<size_t>(shape.num_rows) * sizeof(int32_t));
  labels_ = Buffer(memory, static_cast<size_t>(shape.num_rows) * sizeof(int32_t));
  offsets_ = Buffer(memory, static_cast<size_t>(shape.num_sequences + 1) * sizeof(int32_t));
  loss_sum_ = Buffer(memory, sizeof(double));
  if (ranks.sharding.num_ranks > 1) {
    exchange_ = std::make_unique<RankExchange>(ranks.collectives, ranks.sharding, ranks.config,
                                               parameters_);
  }
  if (purpose == Purpose::kTrain) {
    optimizer_ = std::make_unique<optim::Optimizer>(context_, flat_parameters(parameters_),
                                                    optimizer, model.family);
  }
}

TrainingStep::~TrainingStep() = default;

MemoryPlan TrainingStep::plan(const Context& planning_context, const ModelConfig& model,
                              const BatchShape& shape, Purpose purpose, const StepRanks& ranks) {
  const auto equal = [&](int64_t S) {
    std::vector<int32_t> offsets;
    for (int64_t s = 0; s <= S; ++s) offsets.push_back(narrow<int32_t>(shape.num_rows * s / S));
    return offsets;
  };
  MemoryPlan most =
      plan_for(planning_context, model, shape, purpose, ranks, equal(shape.num_sequences));
  if (shape.lengths == SequenceLengths::kEqual) return most;
  // What ops take grows with the number of sequences and with that of chunks and tiles, which is
  // largest when all sequences but one hold a single row. Where that makes all equal, one fewer
  // takes what only unequal lengths need.
  for (const int64_t S : {shape.num_sequences, shape.num_sequences - 1}) {
    if (S < 1) continue;
    std::vector<int32_t> offsets;
    for (int64_t s = 0; s < S; ++s) offsets.push_back(narrow<int32_t>(s));
    offsets.push_back(narrow<int32_t>(shape.num_rows));
    const MemoryPlan plan = plan_for(planning_context, model, shape, purpose, ranks, offsets);
    const int64_t arena = std::max(most.arena(), plan.arena());
    most.saved_activations = std::max(most.saved_activations, plan.saved_activations);
    most.scratch = std::max(arena - most.saved_activations, std::max(most.scratch, plan.scratch));
  }
  return most;
}

MemoryPlan TrainingStep::plan_for(const Context& planning_context, const ModelConfig& model,
                                  const BatchShape& shape, Purpose purpose, const StepRanks& ranks,
                                  const std::vector<int32_t>& offsets) {
  TrainingStep step(planning_context, model, OptimizerConfig{}, shape, 0, purpose, ranks);
  const std::vector<int32_t> rows(static_cast<size_t>(shape.num_rows), 0);
  const TokenBatch batch{.ids = rows, .labels = rows, .offsets = offsets};
  MemoryPlan plan;
  if (purpose == Purpose::kTrain) {
    step.begin();
    step.accumulate(batch, 1);
    step.update(0, 1);
    plan.optimizer = step.optimizer_->num_bytes();
    plan.checkpoint_copy = ranks.sharding.rank == 0 ? 3 * step.state_part_bytes() : 0;
    plan.program = kProgramBytes;
  }
  if (purpose == Purpose::kTrain || purpose == Purpose::kEvaluate) {
    step.evaluate(batch);
  } else {
    step.forward_backward(batch, 1, nullptr);
  }
  const Tensor gradient = step.parameters_.flat_gradient();
  if (gradient.defined()) plan.gradients = gradient.num_bytes();
  plan.parameters = step.parameters_.num_bytes() - plan.gradients;
  plan.saved_activations = static_cast<int64_t>(step.arena_.peak_saved_bytes());
  plan.scratch = static_cast<int64_t>(step.arena_.peak_bytes()) - plan.saved_activations;
  plan.batch = static_cast<int64_t>(step.ids_.num_bytes() + step.labels_.num_bytes() +
                                    step.offsets_.num_bytes() + step.loss_sum_.num_bytes());
  return plan;
}

ops::Sequences TrainingStep::upload(const TokenBatch& batch) {
  const auto rows = static_cast<int64_t>(batch.ids.size());
  const auto sequences = static_cast<int64_t>(batch.offsets.size()) - 1;
  DELTATRAIN_CHECK(rows <= shape_.num_rows && sequences <= shape_.num_sequences,
                   std::to_string(rows) + " rows in " + std::to_string(sequences) +
                       " sequences, planned for " + std::to_string(shape_.num_rows) + " in " +
                       std::to_string(shape_.num_sequences));
  Device& device = *context_.device;
  device.copy_to_device(ids_.data(), batch.ids.data(), batch.ids.size_bytes());
  if (!batch.labels.empty())
    device.copy_to_device(labels_.data(), batch.labels.data(), batch.labels.size_bytes());
  device.copy_to_device(offsets_.data(), batch.offsets.data(), batch.offsets.size_bytes());
  return {.offsets = batch.offsets,
          .device_offsets = offsets_.tensor(DType::kI32, {sequences + 1})};
}

void TrainingStep::begin() {
  optimizer_->zero_gradients(context_);
  context_.device->fill_zero(loss_sum_.data(), sizeof(double));
}

void TrainingStep::accumulate(const TokenBatch& batch, double grad_scale, Turn turn) {
  if (exchange_ != nullptr) exchange_->set_last_micro_batch(turn == Turn::kLast);
  forward_backward(batch, grad_scale, nullptr);
}

void TrainingStep::forward_backward(const TokenBatch& batch, double grad_scale, Trace* trace) {
  const Arena::SaveScope save_scope(arena_);
  const Arena::ScratchScope scope(arena_);
  const Pass pass{.context = context_,
                  .parameters = parameters_,
                  .sequences = upload(batch),
                  .listener = exchange_.get()};
  const int64_t R = pass.num_rows(), D = model_.config().hidden_size;
  const bool with_gradients = parameters_.flat_gradient().defined();
  const Tensor ids_R = ids_.tensor(DType::kI32, {R});
  const Tensor d_hidden_RD = pass.scratch_activation({R, D});
  {
    const Arena::ScratchScope head_scope(arena_);
    const Tensor hidden_RD = pass.scratch_activation({R, D});
    note_part(context_, "forward");
    model_.forward(pass, ids_R, hidden_RD);
    note_part(context_, "loss head");
    if (trace != nullptr) {
      for (const Tensor& stream_RD : model_.streams())
        trace->streams.push_back(to_host(context_, stream_RD));
      trace->logits = head_logits(hidden_RD);
    }
    loss::LmHeadLoss head{.hidden_RD = hidden_RD,
                          .weight_ND = pass.weight(model_.head()),
                          .labels_R = labels_.tensor(DType::kI32, {R}),
                          .loss_sum = static_cast<double*>(loss_sum_.data()),
                          .grad_scale = grad_scale,
                          .chunk_rows = shape_.loss_chunk_rows};
    if (with_gradients) {
      head.d_hidden_RD = d_hidden_RD;
      head.d_weight_ND = pass.gradient(model_.head());
    }
    loss::lm_head_loss(context_, head);
    if (exchange_ != nullptr) exchange_->sum_losses(loss_sum_.tensor(DType::kF64, {1}));
  }
  note_part(context_, "backward");
  if (with_gradients) model_.backward(pass, ids_R, d_hidden_RD);
}

std::vector<double> TrainingStep::head_logits(const Tensor& hidden_RD) {
  const int64_t R = hidden_RD.size(0), N = model_.config().vocab_size;
  const int64_t chunk = loss::default_chunk_rows(context_, R, N);
  std::vector<double> logits;
  logits.reserve(static_cast<size_t>(R * N));
  const Arena::ScratchScope scope(arena_);
  const Tensor logits_RN = arena_.scratch(context_.activation_dtype, {chunk, N});
  for (int64_t begin = 0; begin < R; begin += chunk) {
    const int64_t end = std::min(R, begin + chunk);
    const Tensor part_RN = logits_RN.rows(0, end - begin);
    ops::linear_forward(context_, {.x_RD = hidden_RD.rows(begin, end),
                                   .weight_XD = parameters_.value(model_.head()),
                                   .y_RX = part_RN});
    const std::vector<double> part = to_host(context_, part_RN);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

TrainingStep::Trace TrainingStep::trace(const TokenBatch& batch, double grad_scale) {
  DELTATRAIN_CHECK(purpose_ == Purpose::kTrace || purpose_ == Purpose::kGradients,
                   "planned for something else");
  const Tensor gradient = parameters_.flat_gradient();
  if (gradient.defined())
    context_.device->fill_zero(gradient.raw(), static_cast<size_t>(gradient.num_bytes()));
  context_.device->fill_zero(loss_sum_.data(), sizeof(double));
  Trace result;
  forward_backward(batch, grad_scale, &result);
  result.loss_sum = loss_sum();
  return result;
}

double TrainingStep::loss_sum() {
  double sum = 0;
  context_.device->copy_to_host(&sum, loss_sum_.data(), sizeof sum);
  return sum;
}

optim::Optimizer::Result TrainingStep::update(double learning_rate, int64_t step) {
  if (exchange_ != nullptr) {
    note_part(context_, "reduce");  // what of it could not be hidden
    exchange_->wait_for_gradients();
  }
  note_part(context_, "optimizer");
  return optimizer_->step(context_, learning_rate, step,
                          static_cast<const double*>(loss_sum_.data()), exchange_.get());
}

double TrainingStep::evaluate(const TokenBatch& batch) {
  context_.device->fill_zero(loss_sum_.data(), sizeof(double));
  const Arena::ScratchScope scope(arena_);
  const Pass pass{.context = context_,
                  .parameters = parameters_,
                  .sequences = upload(batch),
                  .mode = Pass::Mode::kInference,
                  .listener = exchange_.get()};
  const int64_t R = pass.num_rows(), D = model_.config().hidden_size;
  const Tensor hidden_RD = pass.scratch_activation({R, D});
  model_.forward(pass, ids_.tensor(DType::kI32, {R}), hidden_RD);
  loss::lm_head_loss(context_, {.hidden_RD = hidden_RD,
                                .weight_ND = pass.weight(model_.head()),
                                .labels_R = labels_.tensor(DType::kI32, {R}),
                                .loss_sum = static_cast<double*>(loss_sum_.data()),
                                .chunk_rows = shape_.loss_chunk_rows});
  if (exchange_ != nullptr) exchange_->add_up(loss_sum_.tensor(DType::kF64, {1}));
  return loss_sum();
}

std::vector<float> TrainingStep::next_token_logits(std::span<const int32_t> ids, int64_t count) {
  const auto R = static_cast<int64_t>(ids.size());
  DELTATRAIN_CHECK(count >= 1 && count <= R, std::to_string(count) + " of " + std::to_string(R));
  const int64_t D = model_.config().hidden_size, N = model_.config().vocab_size;
  const std::vector<int32_t> offsets = {0, narrow<int32_t>(R)};
  const Arena::ScratchScope scope(arena_);
  const Pass pass{.context = context_,
                  .parameters = parameters_,
                  .sequences = upload({.ids = ids, .labels = {}, .offsets = offsets}),
                  .mode = Pass::Mode::kInference,
                  .listener = exchange_.get()};
  const Tensor hidden_RD = pass.scratch_activation({R, D});
  model_.forward(pass, ids_.tensor(DType::kI32, {R}), hidden_RD);
  const Tensor logits_RN = pass.scratch_activation({1, N});
  ops::linear_forward(context_, {.x_RD = hidden_RD.rows(count - 1, count),
                                 .weight_XD = pass.weight(model_.head()),
                                 .y_RX = logits_RN});
  const std::vector<double> logits = to_host(context_, logits_RN);
  return {logits.begin(), logits.end()};
}

void TrainingStep::rehearse() {
  std::vector<int32_t> ids(static_cast<size_t>(shape_.num_rows));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(model_.config().vocab_size));
  std::vector<int32_t> offsets;
  const int64_t S = shape_.lengths == SequenceLengths::kEqual ? shape_.num_sequences : 1;
  for (int64_t s = 0; s <= S; ++s) offsets.push_back(narrow<int32_t>(shape_.num_rows * s / S));
  const TokenBatch batch{.ids = ids, .labels = ids, .offsets = offsets};
  std::unique_ptr<RankExchange> exchange = std::move(exchange_);
  begin();
  forward_backward(batch, 1, nullptr);
  evaluate(batch);
  exchange_ = std::move(exchange);
}

uint64_t TrainingStep::weights_checksum() {
  if (exchange_ != nullptr) exchange_->wait_for_weights();
  if (checksum_.data() == nullptr) checksum_ = Buffer(context_.device->memory(), sizeof(uint64_t));
  context_.device->fill_zero(checksum_.data(), sizeof(uint64_t));
  const auto add = [this](const Tensor& x) {
    ops::checksum(context_, {x, static_cast<uint64_t*>(checksum_.data())});
  };
  const Tensor master = parameters_.flat_master(), compute = parameters_.flat_compute();
  if (compute.defined()) add(compute);
  if (parameters_.has_sharded_master()) {
    const Segment& shared = parameters_.segments().back();
    add(master.rows(shared.state_begin, shared.state_begin + shared.count));
  } else {
    add(master);
  }
  uint64_t sum = 0;
  context_.device->copy_to_host(&sum, checksum_.data(), sizeof sum);
  return sum;
}

int64_t TrainingStep::state_part_bytes() const { return parameters_.flat_gradient().num_bytes(); }

Tensor TrainingStep::owned_state(StatePart part) const {
  switch (part) {
    case StatePart::kWeights:
      return parameters_.flat_master();
    case StatePart::kExpAvg:
      return optimizer_->flat_exp_avg();
    case StatePart::kExpAvgSq:
      return optimizer_->flat_exp_avg_sq();
  }
  return {};
}

// Where this rank keeps segments alone, the flat gradient takes what belongs to all.
void TrainingStep::write_state(StatePart part, const std::function<void(const Tensor&)>& fill) {
  const Tensor owned = owned_state(part);
  const bool is_whole = owned.num_elements() == parameters_.num_elements();
  const Tensor flat = is_whole ? owned : parameters_.flat_gradient();
  Device& device = *context_.device;
  if (exchange_ != nullptr) exchange_->wait_for_weights();
  if (rank_ == 0) {
    device.fill_zero(flat.raw(), static_cast<size_t>(flat.num_bytes()));
    fill(flat);
  }
  if (exchange_ != nullptr) exchange_->broadcast(flat);
  if (!is_whole) {
    for (const Segment& segment : parameters_.segments()) {
      const Tensor from = flat.rows(segment.begin, segment.begin + segment.count);
      device.copy_on_device(
          owned.rows(segment.state_begin, segment.state_begin + segment.count).raw(), from.raw(),
          static_cast<size_t>(from.num_bytes()));
    }
  }
  const Tensor compute = parameters_.flat_compute();
  if (part == StatePart::kWeights && compute.defined())
    ops::convert(context_, {.x = flat, .y = compute});
}

Tensor TrainingStep::gather_state(StatePart part) {
  const Tensor owned = owned_state(part);
  if (exchange_ != nullptr) exchange_->wait_for_weights();
  if (owned.num_elements() == parameters_.num_elements()) return owned;
  Tensor flat = parameters_.flat_gradient();
  for (const Segment& segment : parameters_.segments()) {
    const Tensor to = flat.rows(segment.begin, segment.begin + segment.count);
    context_.device->copy_on_device(
        to.raw(), owned.rows(segment.state_begin, segment.state_begin + segment.count).raw(),
        static_cast<size_t>(to.num_bytes()));
  }
  exchange_->gather(flat);
  return flat;
}

bool TrainingStep::keeps_whole_state() const {
  return parameters_.num_state_elements() == parameters_.num_elements();
}

std::vector<double> to_host(const Context& context, const Tensor& tensor) {
  DELTATRAIN_CHECK(tensor.is_contiguous(), describe(tensor));
  const auto n = static_cast<size_t>(tensor.num_elements());
  std::vector<char> bytes(static_cast<size_t>(tensor.num_bytes()));
  context.device->copy_to_host(bytes.data(), tensor.raw(), bytes.size());
  std::vector<double> values(n);
  const void* data = bytes.data();
  switch (tensor.dtype()) {
    case DType::kF64:
      std::copy_n(static_cast<const double*>(data), n, values.begin());
      break;
    case DType::kF32:
      std::copy_n(static_cast<const float*>(data), n, values.begin());
      break;
    case DType::kBF16:
      std::transform(static_cast<const BFloat16*>(data), static_cast<const BFloat16*>(data) + n,
                     values.begin(),
                     [](BFloat16 x) { return static_cast<double>(static_cast<float>(x)); });
      break;
    default:
      DELTATRAIN_CHECK(false, describe(tensor));
  }
  return values;
}

}  // namespace deltatrain
