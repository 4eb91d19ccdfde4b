#include "bench/cases.h"

#include <algorithm>
#include <chrono>

#include "base/random.h"
#include "decode/decoder.h"
#include "model/initialization.h"
#include "model/training_step.h"
#include "ops/linear.h"

namespace deltatrain::bench {

namespace {

using Clock = std::chrono::steady_clock;

struct Samples {
  std::vector<double> seconds;

  double median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
  double spread() { return (seconds.back() - seconds.front()) / median(); }
};

template <class Function>
double seconds_of(Device& device, Function function) {
  device.synchronize();
  const auto start = Clock::now();
  function();
  device.synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void fill_normal(Device& device, const Tensor& tensor, const char* name) {
  const RandomStream stream(1, name);
  const auto count = static_cast<size_t>(tensor.num_elements());
  if (tensor.dtype() == DType::kBF16) {
    std::vector<BFloat16> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = BFloat16(static_cast<float>(stream.normal(i)));
    device.copy_to_device(tensor.raw(), values.data(), count * sizeof(BFloat16));
  } else {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(stream.normal(i));
    device.copy_to_device(tensor.raw(), values.data(), count * sizeof(float));
  }
}

std::vector<int32_t> random_ids(int64_t count, int64_t vocab_size) {
  const RandomStream stream(2, "ids");
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(
        stream.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab_size))));
  }
  return ids;
}

}  // namespace

MatmulResult time_matmul(const Context& context, int64_t rows, int64_t out, int64_t in,
                         int samples) {
  Arena arena(context.device->memory(), static_cast<size_t>(1) << 28);
  Context with_arena = context;
  with_arena.arena = &arena;
  MemoryResource& memory = context.device->memory();
  const auto element = static_cast<size_t>(dtype_bytes(context.activation_dtype));
  const Buffer x(memory, static_cast<size_t>(rows * in) * element);
  const Buffer weight(memory, static_cast<size_t>(out * in) * element);
  const Buffer y(memory, static_cast<size_t>(rows * out) * element);
  const DType dtype = context.activation_dtype;
  const ops::LinearForward product{.x_RD = x.tensor(dtype, {rows, in}),
                                   .weight_XD = weight.tensor(dtype, {out, in}),
                                   .y_RX = y.tensor(dtype, {rows, out})};
  fill_normal(*context.device, product.x_RD, "x");
  fill_normal(*context.device, product.weight_XD, "weight");
  ops::linear_forward(with_arena, product);
  Samples times;
  for (int i = 0; i < samples; ++i) {
    times.seconds.push_back(
        seconds_of(*context.device, [&] { ops::linear_forward(with_arena, product); }));
  }
  const double median = times.median();
  return {median, times.spread(), 2.0 * static_cast<double>(rows * out * in) / median * 1e-12};
}

std::vector<TrainStepCase> reference_train_cases() {
  ModelConfig config;
  config.vocab_size = 8192;
  config.hidden_size = 512;
  config.intermediate_size = 2048;
  config.num_hidden_layers = 4;
  config.num_heads = 4;
  config.num_v_heads = 8;
  config.head_dim = 64;
  TrainStepCase gdn{"gdn", config, 4, 1024};
  config.family = ModelFamily::kKda;
  config.num_heads = config.num_v_heads = 8;
  config.head_dim = 32;
  config.expand_v = 2;
  return {gdn, {"kda", config, 4, 1024}};
}

TrainStepResult time_train_step(const Context& context, const Context& planning_context,
                                const TrainStepCase& step, int samples) {
  const int64_t rows = step.micro_batch * step.seq_length;
  const BatchShape shape{.num_rows = rows, .num_sequences = step.micro_batch};
  const MemoryPlan plan = TrainingStep::plan(planning_context, step.model, shape);
  OptimizerConfig optimizer;
  optimizer.lr = 1e-4;
  OpProfile profile(context);
  const std::vector<int32_t> ids = random_ids(rows, step.model.vocab_size);
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b <= step.micro_batch; ++b)
    offsets.push_back(static_cast<int32_t>(b * step.seq_length));
  const TokenBatch batch{.ids = ids, .labels = ids, .offsets = offsets};
  const auto one_step = [&](TrainingStep& training, int64_t number) {
    training.begin();
    training.accumulate(batch, 1.0 / static_cast<double>(rows));
    training.update(1e-4, number);
  };

  TrainStepResult result;
  {
    TrainingStep training(context, step.model, optimizer, shape, plan.arena());
    initialize(training.context(), training.parameters(), step.model.initializer_range, 1);
    one_step(training, 1);
    Samples times;
    for (int i = 0; i < samples; ++i) {
      times.seconds.push_back(seconds_of(*context.device, [&] { one_step(training, i + 2); }));
    }
    result.median_seconds = times.median();
    result.spread = times.spread();
  }
  {
    TrainingStep training(profile.context(), step.model, optimizer, shape, plan.arena());
    initialize(training.context(), training.parameters(), step.model.initializer_range, 1);
    one_step(training, 1);
    profile.reset();
    result.profiled_seconds = seconds_of(*context.device, [&] { one_step(training, 2); });
  }
  result.tokens_per_second = static_cast<double>(rows) / result.median_seconds;
  result.model_tflops =
      count_flops_per_token(step.model, step.seq_length) * result.tokens_per_second * 1e-12;
  result.ops.assign(profile.entries().begin(), profile.entries().end());
  std::sort(result.ops.begin(), result.ops.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  return result;
}

double measure_device_copy_gb_per_s(Device& device) {
  constexpr size_t kBytes = size_t{1} << 30;
  const Buffer from(device.memory(), kBytes);
  const Buffer to(device.memory(), kBytes);
  device.fill_zero(from.data(), kBytes);
  double best = 0;
  for (int run = 0; run < 8; ++run) {
    const double seconds =
        seconds_of(device, [&] { device.copy_on_device(to.data(), from.data(), kBytes); });
    best = std::max(best, 2.0 * static_cast<double>(kBytes) / seconds * 1e-9);
  }
  return best;
}

std::vector<DecodeResult> time_decode(const Context& context, const Context& planning_context,
                                      const ModelConfig& model, int64_t num_sequences,
                                      const std::vector<int64_t>& lengths) {
  constexpr int kWarmUp = 4;  // the recording of a step, among others
  constexpr int kTimed = 32;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  decode::Decoder decoder(context, planning_context, model, num_sequences,
                          longest + (kWarmUp + kTimed) * decode::Decoder::kGreedySteps,
                          std::max<int64_t>(256, num_sequences));
  initialize(decoder.context(), decoder.parameters(), model.initializer_range, 1);
  std::vector<DecodeResult> results;
  for (const int64_t length : lengths) {
    decoder.state().reset(decoder.context());
    std::vector<int32_t> chosen = decoder.feed_greedily(std::vector<std::vector<int32_t>>(
        static_cast<size_t>(num_sequences), random_ids(length, model.vocab_size)));
    Samples times;
    for (int i = 0; i < kWarmUp + kTimed; ++i) {
      // As many steps as the device takes before the host hears of them.
      const int64_t steps = decoder.greedy_steps_at_once();
      const double seconds = seconds_of(
          *context.device, [&] { chosen = decoder.go_on_greedily(chosen, steps).back(); });
      if (i >= kWarmUp) times.seconds.push_back(seconds / static_cast<double>(steps));
    }
    const double median = times.median();
    results.push_back({.num_sequences = num_sequences,
                       .length = length,
                       .seconds_per_step = median,
                       .spread = times.spread(),
                       .tokens_per_second = static_cast<double>(num_sequences) / median,
                       .bytes_per_step = decoder.bytes_per_step(),
                       .state_bytes = decoder.state().num_bytes()});
  }
  return results;
}

}  // namespace deltatrain::bench
