// Learning-rate schedules as pure functions of the number of completed steps.
//
//   n  completed steps        W  warm-up steps        D  decay steps, warm-up included
//
//   n <= W and W > 0   lr = max n / W
//   n > D              lr = min
//   otherwise          r = (n - W) / (D - W)
//                      cosine     lr = min + (max - min) (1 + cos(pi r)) / 2
//                      linear     lr = max - (max - min) r
//                      constant   lr = max
//
// Step i (1-based) uses n = i - 1, as in Megatron-LM: the first step has learning rate 0 when W > 0.
// A skipped step does not count as completed.
#pragma once

#include <cstdint>

#include "config/recipe.h"

namespace deltatrain::optim {

double learning_rate(const OptimizerConfig& optimizer, const ScheduleConfig& schedule,
                     int64_t train_iters, int64_t completed_steps);

}  // namespace deltatrain::optim
