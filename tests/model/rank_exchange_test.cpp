// One step shared by ranks, here threads: the same weights as alone, whoever updates which part.
#include "model/rank_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "base/random.h"
#include "dist/threads_as_ranks.h"
#include "model/initialization.h"
#include "model/training_step.h"

namespace deltatrain {
namespace {

using dist::test::free_port;
using dist::test::place_of;
using dist::test::run_ranks;
using dist::test::short_timeouts;

ModelConfig small_config(bool tied) {
  ModelConfig config;
  config.family = ModelFamily::kGatedDeltaNet;
  config.vocab_size = 37;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_hidden_layers = 2;
  config.num_heads = 1;
  config.num_v_heads = 2;
  config.head_dim = 16;
  config.expand_v = 1;
  config.tie_word_embeddings = tied;
  return config;
}

constexpr int64_t kRows = 24;  // of one rank's batch

std::vector<int32_t> tokens_of(int rank) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kRows; ++i) ids.push_back(static_cast<int32_t>((7 * i + 11 * rank) % 37));
  return ids;
}

struct Outcome {
  std::vector<float> weights, exp_avg, exp_avg_sq;
  double norm = 0, loss = 0;
  uint64_t checksum = 0;
};

// Two steps of `ranks.num_ranks` batches in all; every rank has its own, or one rank all of them.
Outcome two_steps(const ModelConfig& config, const StepRanks& ranks, int num_batches) {
  const auto backend = backend::make_backend(DeviceKind::kCpu);
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan);
  const Context context{&backend->device(), &backend->table(), nullptr, DType::kF32};
  const Context planning{&plan_backend->device(), &plan_backend->table(), nullptr, DType::kF32};
  const BatchShape shape{.num_rows = kRows, .num_sequences = 1};
  OptimizerConfig optimizer;
  optimizer.weight_decay = 0.1;
  StepRanks planned = ranks;
  planned.collectives = nullptr;
  const MemoryPlan plan =
      TrainingStep::plan(planning, config, shape, TrainingStep::Purpose::kTrain, planned);
  TrainingStep step(context, config, optimizer, shape, plan.arena(), TrainingStep::Purpose::kTrain,
                    ranks);
  step.write_state(StatePart::kWeights, [&](const Tensor& flat) {
    initialize(context, step.parameters(), 0.05, 3, flat);
  });
  const std::vector<int32_t> offsets = {0, static_cast<int32_t>(kRows)};
  const bool alone = ranks.sharding.num_ranks == 1;
  Outcome outcome;
  for (int64_t number = 1; number <= 2; ++number) {
    step.begin();
    for (int b = 0; b < num_batches; ++b) {
      if (!alone && b != ranks.sharding.rank) continue;
      const std::vector<int32_t> ids = tokens_of(b);
      step.accumulate({.ids = ids, .labels = ids, .offsets = offsets}, 1.0 / (kRows * num_batches));
    }
    outcome.norm = step.update(1e-2, number).gradient_norm;
    outcome.loss = step.loss_sum();
  }
  outcome.checksum = step.weights_checksum();
  for (const auto& [part, values] : {std::pair{StatePart::kWeights, &outcome.weights},
                                     {StatePart::kExpAvg, &outcome.exp_avg},
                                     {StatePart::kExpAvgSq, &outcome.exp_avg_sq}}) {
    values->resize(static_cast<size_t>(step.state_part_bytes()) / sizeof(float));
    const Tensor flat = step.gather_state(part);
    context.device->copy_to_host(values->data(), flat.raw(), static_cast<size_t>(flat.num_bytes()));
  }
  return outcome;
}

// Elements of the parameters alone, in their order: the padding differs with the number of ranks.
void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                  const layers::ParameterStore& got_store, const layers::ParameterStore& want_store,
                  double tolerance) {
  for (size_t p = 0; p < want_store.infos().size(); ++p) {
    const auto& to = got_store.infos()[p];
    const auto& from = want_store.infos()[p];
    double difference = 0, size = 0;
    for (int64_t i = 0; i < from.num_elements(); ++i) {
      const double a = got[static_cast<size_t>(to.offset + i)];
      const double b = want[static_cast<size_t>(from.offset + i)];
      difference += (a - b) * (a - b);
      size += b * b;
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(size)) << from.name;
  }
}

struct Way {
  int size;
  bool sharded, overlap, tied;
};

class RankExchangeTest : public testing::TestWithParam<Way> {};

TEST_P(RankExchangeTest, RanksUpdateAsOneDoes) {
  const Way way = GetParam();
  const ModelConfig config = small_config(way.tied);
  const Outcome alone = two_steps(config, {}, way.size);
  const auto sharding = [&](int rank) {
    return layers::Sharding{
        .rank = rank, .num_ranks = way.size, .sharded = way.sharded, .bucket_elements = 1000};
  };
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan);
  const Context planning{&plan_backend->device(), &plan_backend->table(), nullptr, DType::kF32};
  const Model model(config);
  const layers::ParameterStore one(planning, model.parameters().infos(),
                                   layers::ParameterStore::Gradients::kNone);
  const layers::ParameterStore several(planning, model.parameters().infos(),
                                       layers::ParameterStore::Gradients::kNone, sharding(0));
  std::vector<Outcome> outcomes(static_cast<size_t>(way.size));
  const int port = free_port();
  const auto thrown = run_ranks(way.size, [&](int rank) {
    dist::Communicator ranks(place_of(rank, way.size, port), "1", short_timeouts());
    {
      const auto collectives = dist::make_host_collectives(ranks);
      ParallelConfig parallel;
      parallel.overlap_grad_reduce = parallel.overlap_param_gather = way.overlap;
      outcomes[static_cast<size_t>(rank)] =
          two_steps(config, {sharding(rank), parallel, collectives.get()}, way.size);
      ranks.all_gather("end", "");
    }
    ranks.leave(0, "");
  });
  EXPECT_THAT(thrown, testing::Each(""));
  // One step apart in f32 sums: 1e-6 holds with room.
  for (const Outcome& outcome : outcomes) {
    EXPECT_NEAR(outcome.norm, alone.norm, 1e-6 * alone.norm);
    EXPECT_NEAR(outcome.loss, alone.loss, 1e-6 * alone.loss);
    expect_close(outcome.weights, alone.weights, several, one, 1e-5);
    expect_close(outcome.exp_avg, alone.exp_avg, several, one, 1e-5);
    expect_close(outcome.exp_avg_sq, alone.exp_avg_sq, several, one, 1e-5);
    EXPECT_EQ(outcome.checksum, outcomes[0].checksum);
    EXPECT_EQ(outcome.weights, outcomes[0].weights) << "the same bits on every rank";
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, RankExchangeTest,
                         testing::Values(Way{2, false, true, true}, Way{2, true, true, true},
                                         Way{3, true, false, false}, Way{3, false, false, false},
                                         Way{2, true, true, false}),
                         [](const auto& tested) {
                           const Way& way = tested.param;
                           return std::to_string(way.size) + (way.sharded ? "_sharded" : "_whole") +
                                  (way.overlap ? "_overlapped" : "_in_turn") +
                                  (way.tied ? "_tied" : "_untied");
                         });

// The calls of a rank in their order: size, and whether they were hurried.
class Watched final : public dist::Collectives {
 public:
  explicit Watched(dist::Collectives& inner) : inner_(inner) {}
  Ticket all_reduce(const Tensor& x_X) override { return inner_.all_reduce(x_X); }
  Ticket reduce_scatter(const Tensor& x_X) override {
    sums.emplace_back(x_X.num_elements(), hurried_);
    return inner_.reduce_scatter(x_X);
  }
  Ticket all_gather(const Tensor& x_X) override {
    weights.emplace_back(x_X.num_elements(), hurried_);
    return inner_.all_gather(x_X);
  }
  Ticket broadcast(const Tensor& x_X) override { return inner_.broadcast(x_X); }
  void hurry(bool on) override { hurried_ = on; }
  void wait(Ticket ticket) override { inner_.wait(ticket); }
  void start_times() override { inner_.start_times(); }
  dist::CollectiveTimes take_times() override { return inner_.take_times(); }
  const char* description() const override { return inner_.description(); }

  std::vector<std::pair<int64_t, bool>> sums, weights;

 private:
  dist::Collectives& inner_;
  bool hurried_ = false;
};

// The embedding, which is the head too, has its gradient last and is read first: nothing hides it.
TEST(RankExchangeHurryTest, OnlyWhatIsWaitedForIsHurried) {
  const ModelConfig config = small_config(true);
  const auto sharding = [](int rank) {
    return layers::Sharding{.rank = rank, .num_ranks = 2, .sharded = true, .bucket_elements = 1000};
  };
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan);
  const Context planning{&plan_backend->device(), &plan_backend->table(), nullptr, DType::kF32};
  const layers::ParameterStore store(planning, Model(config).parameters().infos(),
                                     layers::ParameterStore::Gradients::kNone, sharding(0));
  const std::vector<int64_t>& cuts = store.range_cuts();
  std::vector<std::pair<int64_t, bool>> sums, weights;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const bool is_of_embedding = cuts[i] < config.vocab_size * config.hidden_size;
    weights.emplace_back(cuts[i + 1] - cuts[i], is_of_embedding);
    sums.insert(sums.begin(), weights.back());
  }
  ASSERT_THAT(weights, testing::Contains(testing::Pair(testing::_, false)));
  const auto twice = [](std::vector<std::pair<int64_t, bool>> calls) {
    const auto step = calls;
    calls.insert(calls.end(), step.begin(), step.end());
    return calls;
  };
  const int port = free_port();
  const auto thrown = run_ranks(2, [&](int rank) {
    dist::Communicator ranks(place_of(rank, 2, port), "1", short_timeouts());
    {
      const auto collectives = dist::make_host_collectives(ranks);
      Watched watched(*collectives);
      two_steps(config, {sharding(rank), ParallelConfig(), &watched}, 2);
      EXPECT_EQ(watched.sums, twice(sums));
      // Reading the state at the end gathers three more times, for which the host waits.
      std::vector<std::pair<int64_t, bool>> steps = watched.weights;
      steps.resize(std::min(steps.size(), 2 * weights.size()));
      EXPECT_EQ(steps, twice(weights));
      ranks.all_gather("end", "");
    }
    ranks.leave(0, "");
  });
  EXPECT_THAT(thrown, testing::Each(""));
}

// With bf16 a rank keeps the masters of its segments alone; sizes are all that a plan can tell.
TEST(ShardingTest, SegmentsOfAllRanksTileTheMatrices) {
  const auto plan_backend = backend::make_backend(DeviceKind::kPlan, {.planned = DeviceKind::kCpu});
  const Context planning{&plan_backend->device(), &plan_backend->table(), nullptr, DType::kBF16};
  const Model model(small_config(true));
  for (const int size : {1, 2, 3, 5}) {
    std::vector<int> owners;
    int64_t matrices = 0;
    for (int rank = 0; rank < size; ++rank) {
      const layers::ParameterStore store(
          planning, model.parameters().infos(), layers::ParameterStore::Gradients::kAllocate,
          {.rank = rank, .num_ranks = size, .sharded = true, .bucket_elements = 3000});
      matrices = store.num_matrix_elements();
      owners.resize(static_cast<size_t>(store.num_elements()), 0);
      int64_t state = 0;
      for (const Segment& segment : store.segments()) {
        EXPECT_EQ(segment.state_begin, state);
        EXPECT_EQ(segment.begin % 64, 0);
        EXPECT_EQ(segment.count % 64, 0);
        state += segment.count;
        for (int64_t i = segment.begin; i < segment.begin + segment.count; ++i)
          ++owners[static_cast<size_t>(i)];
      }
      EXPECT_EQ(store.num_state_elements(), state);
      EXPECT_EQ(store.has_sharded_master(), size > 1);
      EXPECT_EQ(store.flat_master().num_elements(), state);
      // f32 masters of the segments, a bf16 copy and f32 gradients of all.
      EXPECT_EQ(store.num_bytes(), 4 * state + 6 * store.num_elements());
    }
    for (size_t i = 0; i < owners.size(); ++i)
      ASSERT_EQ(owners[i], static_cast<int64_t>(i) < matrices ? 1 : size) << i;
  }
}

}  // namespace
}  // namespace deltatrain
