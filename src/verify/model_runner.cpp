#include "verify/model_runner.h"

#include "base/check.h"
#include "model/training_step.h"
#include "model/weights.h"
#include "ops/linear.h"

namespace deltatrain::verify {

using layers::ParameterStore;

ModelRunner::ModelRunner(const Context& context, const Context& planning_context,
                         const std::filesystem::path& path, int64_t max_length)
    : folder_(path), context_(context), max_length_(max_length) {
  const ModelConfig config = read_model_config(folder_);
  model_ = std::make_unique<Model>(config);
  const auto make_store = [&](const Context& where) {
    return std::make_unique<ParameterStore>(where, model_->parameters().infos(),
                                            ParameterStore::Gradients::kNone);
  };
  MemoryResource& memory = context.device->memory();
  const auto element = static_cast<size_t>(dtype_bytes(context.activation_dtype));
  ids_ = Buffer(memory, static_cast<size_t>(max_length) * sizeof(int32_t));
  offsets_ = Buffer(memory, 2 * sizeof(int32_t));
  hidden_ = Buffer(memory, static_cast<size_t>(max_length * config.hidden_size) * element);
  logits_ = Buffer(memory, static_cast<size_t>(kChunk * config.vocab_size) * element);

  Arena planning;
  Context plan = planning_context;
  plan.arena = &planning;
  forward(plan, *make_store(plan), max_length);
  arena_ = Arena(memory, planning.peak_bytes());
  context_.arena = &arena_;
  parameters_ = make_store(context_);
  load_weights(context_, config, folder_, *parameters_);
}

ModelRunner::~ModelRunner() = default;

void ModelRunner::forward(const Context& context, const ParameterStore& parameters,
                          int64_t num_rows) {
  const std::vector<int32_t> offsets = {0, narrow<int32_t>(num_rows)};
  context.device->copy_to_device(offsets_.data(), offsets.data(), 2 * sizeof(int32_t));
  const Arena::ScratchScope scope(*context.arena);
  const layers::Pass pass{
      .context = context,
      .parameters = parameters,
      .sequences = {.offsets = offsets, .device_offsets = offsets_.tensor(DType::kI32, {2})},
      .mode = layers::Pass::Mode::kInference};
  model_->forward(pass, ids_.tensor(DType::kI32, {num_rows}),
                  hidden_.tensor(context.activation_dtype, {num_rows, config().hidden_size}));
}

void ModelRunner::run(std::span<const int32_t> ids) {
  num_rows_ = static_cast<int64_t>(ids.size());
  DELTATRAIN_CHECK(num_rows_ > 0 && num_rows_ <= max_length_,
                   std::to_string(num_rows_) + " tokens");
  context_.device->copy_to_device(ids_.data(), ids.data(), ids.size_bytes());
  forward(context_, *parameters_, num_rows_);
}

std::vector<float> ModelRunner::logits(int64_t begin, int64_t end) {
  DELTATRAIN_CHECK(0 <= begin && begin < end && end <= num_rows_ && end - begin <= kChunk,
                   "rows of the last run");
  const Tensor hidden_RD =
      hidden_.tensor(context_.activation_dtype, {num_rows_, config().hidden_size});
  const Tensor logits_RN =
      logits_.tensor(context_.activation_dtype, {end - begin, config().vocab_size});
  ops::linear_forward(context_, {.x_RD = hidden_RD.rows(begin, end),
                                 .weight_XD = parameters_->value(model_->head()),
                                 .y_RX = logits_RN});
  const std::vector<double> values = to_host(context_, logits_RN);
  return {values.begin(), values.end()};
}

}  // namespace deltatrain::verify
