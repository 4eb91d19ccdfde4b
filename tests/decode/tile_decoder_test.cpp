// Steps of a TileDecoder on the devices that this machine has. Its passes are tested through the
// scores and answers made with them (tests/eval, tests/serve).
#include "decode/tile_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "decode/decoder.h"
#include "model/initialization.h"
#include "model/training_step.h"  // to_host
#include "verify/tolerance.h"

namespace deltatrain::decode {
namespace {

constexpr int64_t kVocabulary = 97;

ModelConfig tiny(ModelFamily family, bool hybrid) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = kVocabulary;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 3;
  config.num_heads = 2;
  config.num_v_heads = 4;
  config.head_dim = 16;
  config.expand_v = family == ModelFamily::kKda ? 2 : 1;
  if (hybrid) {
    config.attn = MlaConfig{.layers = {1},
                            .num_heads = 2,
                            .q_lora_rank = 24,
                            .kv_lora_rank = 16,
                            .qk_nope_head_dim = 8,
                            .qk_rope_head_dim = 8,
                            .v_head_dim = 16};
  }
  return config;
}

struct Backends {
  Backends(DeviceKind kind, DType dtype)
      : tested(backend::make_backend(kind)),
        plan([kind] {
          backend::BackendOptions options;
          options.planned = kind;
          return backend::make_backend(DeviceKind::kPlan, options);
        }()),
        context{&tested->device(), &tested->table(), nullptr, dtype},
        planning{&plan->device(), &plan->table(), nullptr, dtype} {}

  std::unique_ptr<backend::Backend> tested, plan;
  Context context, planning;
};

std::vector<int32_t> ids_of(int64_t sequence, int64_t length) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>((sequence * 31 + i * i * 7 + 3 * i) % kVocabulary));
  return ids;
}

class TileDecoderStepTest
    : public testing::TestWithParam<std::tuple<ModelFamily, bool, DeviceKind, DType>> {
 protected:
  void SetUp() override {
    const auto kinds = backend::available_backends();
    if (std::find(kinds.begin(), kinds.end(), std::get<2>(GetParam())) == kinds.end())
      GTEST_SKIP() << "no such device";
    backends_ = std::make_unique<Backends>(std::get<2>(GetParam()), std::get<3>(GetParam()));
  }
  ModelConfig config() const { return tiny(std::get<0>(GetParam()), std::get<1>(GetParam())); }
  std::unique_ptr<TileDecoder> decoder(int64_t num_step_slots) const {
    auto made = std::make_unique<TileDecoder>(backends_->context, backends_->planning, config(),
                                              TileDecoder::Sizes{.num_slots = 2,
                                                                 .max_length = 64,
                                                                 .tile_rows = 32,
                                                                 .logit_rows = 64,
                                                                 .short_tile_rows = 16,
                                                                 .num_step_slots = num_step_slots});
    initialize(made->context(), made->parameters(), 0.1, 5);
    return made;
  }
  // Sequence `sequence` after its prompt, in step slot `slot`.
  static void start(TileDecoder& decoder, int64_t sequence, int64_t slot) {
    const std::vector<int32_t> prompt = ids_of(sequence, 9);
    const std::span<const int32_t> piece(prompt);
    decoder.state().reset_sequence(decoder.context(), 0);
    decoder.feed(0, {&piece, 1}, TileDecoder::Tile::kShort);
    decoder.step_state().copy_sequence(decoder.context(), decoder.state(), 0, slot);
  }
  struct Row {
    std::vector<double> logits;
    double lse = 0;
    int32_t chosen = 0;
    friend bool operator==(const Row&, const Row&) = default;
  };
  static std::vector<Row> rows_of(const TileDecoder& decoder,
                                  const TileDecoder::StepLogits& result) {
    const int64_t S = result.logits_SN.size(0);
    const std::vector<double> logits = to_host(decoder.context(), result.logits_SN);
    const std::vector<double> lse = to_host(decoder.context(), result.lse_S);
    std::vector<int32_t> chosen(static_cast<size_t>(S));
    decoder.context().device->copy_to_host(chosen.data(), result.chosen_S.raw(),
                                           chosen.size() * sizeof(int32_t));
    std::vector<Row> rows;
    for (int64_t s = 0; s < S; ++s) {
      rows.push_back({{logits.begin() + s * kVocabulary, logits.begin() + (s + 1) * kVocabulary},
                      lse[static_cast<size_t>(s)],
                      chosen[static_cast<size_t>(s)]});
    }
    return rows;
  }

  std::unique_ptr<Backends> backends_;
};

TEST_P(TileDecoderStepTest, NeighboursAndSlotsDoNotChangeBits) {
  const auto alone = decoder(1);
  start(*alone, 3, 0);
  std::vector<Row> want;
  for (const int32_t id : ids_of(3, 6))
    want.push_back(rows_of(*alone, alone->step(0, {&id, 1}))[0]);

  const auto many = decoder(2 * alone->step_rows());
  const int64_t rows = many->step_rows();
  for (const int64_t count : {int64_t{2}, rows - 1, rows}) {
    const int64_t first = count == 2 ? 0 : rows;
    const int64_t slot = count - 1;
    for (int64_t i = 0; i < count; ++i) start(*many, i == slot ? 3 : i + 40, first + i);
    for (size_t at = 0; at < want.size(); ++at) {
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < count; ++i) ids.push_back(ids_of(i == slot ? 3 : i + 40, 6)[at]);
      const std::vector<Row> got = rows_of(*many, many->step(first, ids));
      ASSERT_EQ(got.size(), static_cast<size_t>(count));
      EXPECT_EQ(got[static_cast<size_t>(slot)], want[at]) << count << " sequences, step " << at;
      EXPECT_NE(got[0].logits, want[at].logits);
    }
    EXPECT_EQ(many->step_state().length(first + slot), 9 + 6);
  }
}

// Against a decoder without tiles.
TEST_P(TileDecoderStepTest, StepsContinueTheirPrompt) {
  if (std::get<3>(GetParam()) == DType::kBF16)
    GTEST_SKIP() << "bf16 rounds differently in passes of other shapes";
  const auto tiles = decoder(2);
  Decoder plain(backends_->context, backends_->planning, config(), 1, 64, 32);
  initialize(plain.context(), plain.parameters(), 0.1, 5);
  start(*tiles, 8, 0);
  plain.feed(std::vector<std::vector<int32_t>>{ids_of(8, 9)});
  for (const int32_t id : ids_of(12, 5)) {
    const std::vector<float> want = plain.feed(std::vector<std::vector<int32_t>>{{id}});
    const Row got = rows_of(*tiles, tiles->step(0, {&id, 1}))[0];
    double difference = 0, norm = 0, sum = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(got.logits[i] - want[i], 2);
      norm += std::pow(want[i], 2);
      sum += std::exp(want[i]);
    }
    EXPECT_LE(std::sqrt(difference / norm), verify::kPiecesF32);
    EXPECT_NEAR(got.lse, std::log(sum), 1e-5 * std::fabs(std::log(sum)));
    EXPECT_EQ(got.chosen, std::max_element(want.begin(), want.end()) - want.begin());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Devices, TileDecoderStepTest,
    testing::Values(std::tuple{ModelFamily::kGatedDeltaNet, false, DeviceKind::kCpu, DType::kF32},
                    std::tuple{ModelFamily::kKda, false, DeviceKind::kCpu, DType::kF32},
                    std::tuple{ModelFamily::kGatedDeltaNet, true, DeviceKind::kCpu, DType::kF32},
                    std::tuple{ModelFamily::kGatedDeltaNet, false, DeviceKind::kReference,
                               DType::kF64},
                    std::tuple{ModelFamily::kGatedDeltaNet, false, DeviceKind::kCuda, DType::kBF16},
                    std::tuple{ModelFamily::kKda, false, DeviceKind::kCuda, DType::kBF16},
                    std::tuple{ModelFamily::kGatedDeltaNet, true, DeviceKind::kCuda, DType::kBF16},
                    std::tuple{ModelFamily::kKda, false, DeviceKind::kCuda, DType::kF32}));

}  // namespace
}  // namespace deltatrain::decode
