// Steps of a TileDecoder on the devices that this machine has. Its passes are tested through the
// scores and answers made with them (tests/eval, tests/serve).
#include "decode/tile_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "backend/registry.h"
#include "decode/decoder.h"
#include "model/initialization.h"
#include "model/training_step.h"  // to_host
#include "ops/reference/token_choices.h"
#include "support/devices.h"
#include "support/small_models.h"
#include "verify/tolerance.h"

namespace deltatrain::decode {
namespace {

using test::Backends;

constexpr int64_t kVocabulary = 97;

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
    if (!test::has_device(std::get<2>(GetParam()))) GTEST_SKIP() << "no such device";
    backends_ = std::make_unique<Backends>(std::get<2>(GetParam()), std::get<3>(GetParam()),
                                           /*gemm_uniform_rows=*/true);
  }
  ModelConfig config() const {
    return test::small_model(std::get<0>(GetParam()), std::get<1>(GetParam()), kVocabulary);
  }
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
    int32_t chosen = 0;
    friend bool operator==(const Row&, const Row&) = default;
  };
  static std::vector<Row> rows_of(const TileDecoder& decoder,
                                  const TileDecoder::StepLogits& result) {
    const int64_t S = result.logits_SN.size(0);
    const std::vector<double> logits = to_host(decoder.context(), result.logits_SN);
    std::vector<int32_t> chosen(static_cast<size_t>(S));
    decoder.context().device->copy_to_host(chosen.data(), result.chosen_S.raw(),
                                           chosen.size() * sizeof(int32_t));
    std::vector<Row> rows;
    for (int64_t s = 0; s < S; ++s) {
      rows.push_back({{logits.begin() + s * kVocabulary, logits.begin() + (s + 1) * kVocabulary},
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

  // As many as one step takes, or more.
  const auto many = decoder(2 * (std::get<2>(GetParam()) == DeviceKind::kCuda ? 256 : 4));
  const int64_t rows = many->step_rows();
  std::vector<int64_t> counts = {2, rows - 1, rows};
  for (const int64_t count : {9, 17, 40, 65, 150}) {  // whose products a GPU divides differently
    if (count < rows) counts.push_back(count);
  }
  for (const int64_t count : counts) {
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
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(got.logits[i] - want[i], 2);
      norm += std::pow(want[i], 2);
    }
    EXPECT_LE(std::sqrt(difference / norm), verify::kPiecesF32);
    EXPECT_EQ(got.chosen, std::max_element(want.begin(), want.end()) - want.begin());
  }
}

// Of rows of a step and of kept rows: what the host makes of the same logits, for rows that ask for different things.
TEST_P(TileDecoderStepTest, ChoicesAreThoseOfTheLogits) {
  const int64_t count = 3;
  const auto tiles = decoder(count);
  for (int64_t s = 0; s < count; ++s) start(*tiles, s + 5, s);
  const std::vector<int32_t> ids = {4, 5, 6};
  const std::vector<Row> rows = rows_of(*tiles, tiles->step(0, ids));
  using Wish = TileDecoder::Wish;
  const std::vector<Wish> wishes = {
      {.sampling = {.temperature = 0}, .num_top = 2},
      {.sampling = {.temperature = 0.8, .top_k = 30, .top_p = 0.9, .seed = 3}, .uniform = 0.77},
      {.given = 11, .num_top = TileDecoder::kMaxTop}};
  const auto choices = tiles->step_choices(wishes);
  ASSERT_EQ(choices.size(), 3U);
  for (size_t s = 0; s < 3; ++s) {
    const std::vector<double>& logits = rows[s].logits;
    double sum = 0;
    for (const double x : logits) sum += std::exp(x);
    EXPECT_NEAR(choices[s].lse, std::log(sum), 1e-5 * std::fabs(std::log(sum)));
    EXPECT_EQ(choices[s].logit, logits[static_cast<size_t>(choices[s].id)]);
    ASSERT_EQ(choices[s].top.size(), static_cast<size_t>(wishes[s].num_top));
    std::vector<double> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t i = 0; i < choices[s].top.size(); ++i) {
      EXPECT_EQ(choices[s].top[i].second, sorted[i]);
      EXPECT_EQ(logits[static_cast<size_t>(choices[s].top[i].first)], sorted[i]);
    }
  }
  EXPECT_EQ(choices[0].id, rows[0].chosen);
  EXPECT_EQ(choices[2].id, 11);
  EXPECT_EQ(choices[1].id,
            ops::reference::draw(rows[1].logits.data(), kVocabulary, 0.8, 30, 0.9, 0.77));

  // Three wishes of one kept row.
  tiles->keep_rows(2, 1, 0);
  tiles->keep_rows(2, 1, 1);
  tiles->keep_rows(2, 1, 2);
  const auto kept = tiles->choices(wishes);
  EXPECT_EQ(kept[0].id, kept[2].top[0].first);
  EXPECT_EQ(kept[0].lse, kept[2].lse);
  EXPECT_EQ(kept[0].top[1], kept[2].top[1]);
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
