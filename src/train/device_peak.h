// What a card can do at most, for model FLOPs utilization.
#pragma once

#include <optional>
#include <string_view>

#include "base/dtype.h"

namespace deltatrain::train {

// Peak FLOP/s of dense products with operands of `dtype` and f32 sums, from the makers' data sheets,
// at the boost clock: for bf16 on the matrix units, for f32 off them (this program uses no TF32).
// `description`: of the device, which starts with the card's name. None for cards that are not in
// the table, and for processors.
std::optional<double> peak_flops(std::string_view description, DType dtype);

}  // namespace deltatrain::train
