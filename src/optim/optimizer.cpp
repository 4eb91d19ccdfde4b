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
  const Tensor& master = parameters_.master_X;
  const auto bytes = static_cast<size_t>(master.num_bytes());
  for (Buffer* state : {&m_, &v_}) {
    *state = Buffer(memory, bytes, "the optimizer's state");
    context.device->fill_zero(state->data(), bytes);
  }
  std::vector<uint8_t> decays(
      static_cast<size_t>(divide_exactly(master.num_elements(), ops::kDecayBlock)), 0);
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
                                  const double* loss_sum) {
  const Tensor& master = parameters_.master_X;
  ops::StepScalars scalars;
  scalars.learning_rate = learning_rate;
  scalars.step = static_cast<double>(step);
  scalars.clip_grad = config_.clip_grad;
  auto* device_scalars = static_cast<ops::StepScalars*>(scalars_.data());
  context.device->copy_to_device(device_scalars, &scalars, sizeof scalars);
  ops::sum_of_squares(context, {.gradient_X = parameters_.gradient_X, .scalars = device_scalars});
  ops::finish_gradient_norm(context, {.scalars = device_scalars, .loss_sum = loss_sum});
  const Shape& shape = master.shape();
  ops::adamw(context,
             {.parameter_X = master,
              .compute_X = parameters_.compute_X,
              .gradient_X = parameters_.gradient_X,
              .m_X = m_.tensor(master.dtype(), shape),
              .v_X = v_.tensor(master.dtype(), shape),
              .decays_X = decays_.tensor(DType::kU8, {static_cast<int64_t>(decays_.num_bytes())}),
              .scalars = device_scalars,
              .beta1 = config_.adam_beta1,
              .beta2 = config_.adam_beta2,
              .eps = config_.adam_eps,
              .weight_decay = config_.weight_decay});
  context.device->copy_to_host(&scalars, device_scalars, sizeof scalars);
  return {scalars.gradient_norm, scalars.skipped > 0};
}

Tensor Optimizer::flat_exp_avg() const {
  return m_.tensor(parameters_.master_X.dtype(), parameters_.master_X.shape());
}

Tensor Optimizer::flat_exp_avg_sq() const {
  return v_.tensor(parameters_.master_X.dtype(), parameters_.master_X.shape());
}

int64_t Optimizer::num_bytes() const {
  return static_cast<int64_t>(m_.num_bytes() + v_.num_bytes() + decays_.num_bytes() +
                              scalars_.num_bytes());
}

}  // namespace deltatrain::optim
