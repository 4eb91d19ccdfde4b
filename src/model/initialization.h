// Weights before training, in distribution as FLA draws them: normal(0, initializer_range) for matrices
// and convolutions, ones for norms, zeros for biases, A_log = ln U(low, 16), dt_bias the inverse softplus
// of a log-uniform step between 1e-3 and 1e-1. No rescaling with depth.
// Each tensor has its own stream, keyed by (seed, name): a tensor's values don't depend on the rest of
// the model.
#pragma once

#include <cstdint>

#include "layers/parameters.h"

namespace deltatrain {

// Fills every tensor of the store and its compute copy.
void initialize(const Context& context, layers::ParameterStore& store, double initializer_range,
                uint64_t seed);
// The same into flat masters that lie elsewhere, all elements of them.
void initialize(const Context& context, const layers::ParameterStore& store,
                double initializer_range, uint64_t seed, const Tensor& flat_X);

}  // namespace deltatrain
