#include "optim/schedule.h"

#include <cmath>
#include <numbers>

namespace deltatrain::optim {

double learning_rate(const OptimizerConfig& optimizer, const ScheduleConfig& schedule,
                     int64_t train_iters, int64_t completed_steps) {
  const auto n = static_cast<double>(completed_steps);
  const auto W = static_cast<double>(schedule.lr_warmup_iters);
  const auto D =
      static_cast<double>(schedule.lr_decay_iters > 0 ? schedule.lr_decay_iters : train_iters);
  if (W > 0 && n <= W) return optimizer.lr * n / W;
  if (schedule.lr_decay_style == DecayStyle::kConstant) return optimizer.lr;
  if (n > D || D <= W) return optimizer.min_lr;
  const double r = (n - W) / (D - W);
  if (schedule.lr_decay_style == DecayStyle::kLinear)
    return optimizer.lr - (optimizer.lr - optimizer.min_lr) * r;
  return optimizer.min_lr +
         (optimizer.lr - optimizer.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * r));
}

}  // namespace deltatrain::optim
