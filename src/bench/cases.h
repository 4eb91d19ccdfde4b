// The benchmark's cases. Each is first run once,
// then timed over several samples; medians are reported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/op_profile.h"
#include "config/model_config.h"
#include "device/context.h"

namespace deltatrain::bench {

// A product y = x W^T of rows x out x in.
struct MatmulResult {
  double median_seconds = 0;
  double spread = 0;  // (largest - smallest) / median of the samples
  double tflops = 0;
};
MatmulResult time_matmul(const Context& context, int64_t rows, int64_t out, int64_t in,
                         int samples);

struct TrainStepCase {
  std::string name;
  ModelConfig model;
  int64_t micro_batch = 1;
  int64_t seq_length = 0;
};
// Shapes that fit two cores: hidden 512, MLP 2048,
// 4 layers, vocabulary 8192, sequence 1024, micro-batch 4.
std::vector<TrainStepCase> reference_train_cases();

struct TrainStepResult {
  double median_seconds = 0;  // forward, backward and update of one micro-batch
  double spread = 0;
  double tokens_per_second = 0;
  double model_tflops = 0;
  std::vector<std::pair<std::string, OpProfile::Entry>>
      ops;  // of one profiled step, most time first
  double profiled_seconds = 0;
};
TrainStepResult time_train_step(const Context& context, const Context& planning_context,
                                const TrainStepCase& step, int samples);

// Bytes read plus bytes written per second by a copy on the device, in GB/s; the best of several.
double measure_device_copy_gb_per_s(Device& device);

// Greedy decoding of `num_sequences` sequences at once, one token each per step, after `length`
// tokens each.
struct DecodeResult {
  int64_t num_sequences = 0;
  int64_t length = 0;
  double seconds_per_step = 0;
  double spread = 0;
  double tokens_per_second = 0;
  int64_t bytes_per_step = 0;  // weights and states, read once
  int64_t state_bytes = 0;
};
std::vector<DecodeResult> time_decode(const Context& context, const Context& planning_context,
                                      const ModelConfig& model, int64_t num_sequences,
                                      const std::vector<int64_t>& lengths);

}  // namespace deltatrain::bench
