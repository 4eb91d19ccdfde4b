#include "optim/optimizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace deltatrain::optim {

namespace {

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A dotted component of the name is "norm" or ends with "_norm".
bool has_norm_component(const std::string& name) {
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string component = name.substr(begin, end - begin);
    if (component == "norm" || ends_with(component, "_norm")) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

bool has_weight_decay(const std::string& name, const Shape& shape, DecayGroups groups,
                      ModelFamily family) {
  if (groups == DecayGroups::kHf) return !contains(name, "bias") && !has_norm_component(name);
  if (ends_with(name, ".A_log"))
    return groups == DecayGroups::kMegatronExact && family == ModelFamily::kKda;
  return shape.rank() >= 2 && !ends_with(name, "bias");
}

Optimizer::Optimizer(const Context& context, FlatParameters parameters,
                     const OptimizerConfig& config, ModelFamily family)
    : parameters_(std::move(parameters)), config_(config) {
  MemoryResource& memory = context.device->memory();
  const Tensor& gradient = parameters_.gradient_X;
  if (parameters_.segments.empty())
    parameters_.segments = {{.begin = 0, .count = gradient.num_elements(), .state_begin = 0}};
  num_state_elements_ = parameters_.segments.back().state_begin + parameters_.segments.back().count;
  const auto bytes = static_cast<size_t>(num_state_elements_ * dtype_bytes(gradient.dtype()));
  for (Buffer* state : {&m_, &v_}) {
    *state = Buffer(memory, bytes, "the optimizer's state");
    context.device->fill_zero(state->data(), bytes);
  }
  std::vector<uint8_t> decays(
      static_cast<size_t>(divide_exactly(gradient.num_elements(), ops::kDecayBlock)), 0);
  std::vector<bool> owned(decays.size(), false);
  for (const ParameterRange& info : parameters_.ranges) {
    const uint8_t decay =
        has_weight_decay(info.name, info.shape, config.decay_groups, family) ? 1 : 0;
    const int64_t last = (info.offset + info.shape.num_elements() - 1) / ops::kDecayBlock;
    for (int64_t block = info.offset / ops::kDecayBlock; block <= last; ++block) {
      const auto at = static_cast<size_t>(block);
      DELTATRAIN_CHECK(!owned[at] || decays[at] == decay,
                       info.name + ": shares a block with another decay group");
      owned[at] = true;
      decays[at] = decay;
    }
  }
  decays_ = Buffer(memory, decays.size());
  context.device->copy_to_device(decays_.data(), decays.data(), decays.size());
  scalars_ = Buffer(memory, sizeof(ops::StepScalars));
}

void Optimizer::zero_gradients(const Context& context) {
  const Tensor& gradient = parameters_.gradient_X;
  context.device->fill_zero(gradient.raw(), static_cast<size_t>(gradient.num_bytes()));
}

Optimizer::Result Optimizer::step(const Context& context, double learning_rate, int64_t step,
                                  const double* loss_sum, UpdateListener* listener) {
  const std::vector<Segment>& segments = parameters_.segments;
  ops::StepScalars scalars;
  scalars.learning_rate = learning_rate;
  scalars.step = static_cast<double>(step);
  scalars.clip_grad = config_.clip_grad;
  auto* device_scalars = static_cast<ops::StepScalars*>(scalars_.data());
  context.device->copy_to_device(device_scalars, &scalars, sizeof scalars);
  const auto gradient_of = [&](const Segment& segment) {
    return parameters_.gradient_X.rows(segment.begin, segment.begin + segment.count);
  };
  // What every rank has stands last and counts once.
  for (size_t i = 0; i < segments.size(); ++i) {
    if (i > 0 && i + 1 == segments.size() && listener != nullptr)
      listener->add_up(Tensor(&device_scalars->sum_of_squares, DType::kF64, {1}));
    ops::sum_of_squares(context,
                        {.gradient_X = gradient_of(segments[i]),
                         .scalars = device_scalars,
                         .mode = i == 0 ? ops::GradMode::kOverwrite : ops::GradMode::kAccumulate});
  }
  ops::finish_gradient_norm(context, {.scalars = device_scalars, .loss_sum = loss_sum});
  const bool is_compact =
      parameters_.master_X.num_elements() < parameters_.gradient_X.num_elements();
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const int64_t end = segment.begin + segment.count;
    const int64_t state_end = segment.state_begin + segment.count;
    const int64_t master_begin = is_compact ? segment.state_begin : segment.begin;
    const Tensor& compute_X = parameters_.compute_X;
    const Tensor decays_X = decays_.tensor(DType::kU8, {static_cast<int64_t>(decays_.num_bytes())});
    if (segment.count > 0) {
      ops::adamw(
          context,
          {.parameter_X = parameters_.master_X.rows(master_begin, master_begin + segment.count),
           .compute_X = compute_X.defined() ? compute_X.rows(segment.begin, end) : Tensor(),
           .gradient_X = gradient_of(segment),
           .m_X = flat_exp_avg().rows(segment.state_begin, state_end),
           .v_X = flat_exp_avg_sq().rows(segment.state_begin, state_end),
           .decays_X = decays_X.rows(segment.begin / ops::kDecayBlock,
                                     divide_exactly(end, ops::kDecayBlock)),
           .scalars = device_scalars,
           .beta1 = config_.adam_beta1,
           .beta2 = config_.adam_beta2,
           .eps = config_.adam_eps,
           .weight_decay = config_.weight_decay});
    }
    if (listener != nullptr) listener->updated(i);
  }
  context.device->copy_to_host(&scalars, device_scalars, sizeof scalars);
  return {scalars.gradient_norm, scalars.skipped > 0};
}

Tensor Optimizer::state(const Buffer& buffer) const {
  return buffer.tensor(parameters_.gradient_X.dtype(), {num_state_elements_});
}

Tensor Optimizer::flat_exp_avg() const { return state(m_); }
Tensor Optimizer::flat_exp_avg_sq() const { return state(v_); }

int64_t Optimizer::num_bytes() const {
  return static_cast<int64_t>(m_.num_bytes() + v_.num_bytes() + decays_.num_bytes() +
                              scalars_.num_bytes());
}

}  // namespace deltatrain::optim
