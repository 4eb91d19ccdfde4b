#include "data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace deltatrain::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Row `sample` holds 10 sample, 10 sample + 1, ...; optionally no label at multiples of three.
class CountingSource final : public SampleSource {
 public:
  explicit CountingSource(bool masked, int64_t end) : masked_(masked), end_(end) {}

  int64_t seq_length() const override { return 3; }
  int64_t epoch_samples() const override { return end_; }
  int64_t num_tokens() const override { return 3 * end_ + 1; }
  int64_t num_samples() const override { return end_; }
  int64_t labels_per_sample() const override { return masked_ ? -1 : 3; }
  bool packs_documents() const override { return masked_; }
  int64_t max_starts() const override { return masked_ ? 2 : 1; }
  std::string describe(int64_t sample) const override { return std::to_string(sample); }

  void read(int64_t sample, std::span<int32_t> input_ids_T, std::span<int32_t> labels_T,
            std::vector<int32_t>* starts) const override {
    if (sample >= end_) throw ConfigError("sample " + std::to_string(sample) + ": past the end");
    for (size_t t = 0; t < 3; ++t) {
      input_ids_T[t] = static_cast<int32_t>(10 * sample + static_cast<int64_t>(t));
      labels_T[t] = masked_ && input_ids_T[t] % 3 == 0 ? kNoLabel : input_ids_T[t] + 1;
    }
    if (starts != nullptr) starts->insert(starts->end(), {0, 2});
  }

 private:
  const bool masked_;
  const int64_t end_;
};

std::unique_ptr<const SampleSource> counting(bool masked = false, int64_t end = 1 << 20) {
  return std::make_unique<CountingSource>(masked, end);
}

LoaderOptions options_of(int64_t micro_batch_size, int64_t global_batch_size, int64_t rank = 0,
                         int64_t num_ranks = 1) {
  LoaderOptions options;
  options.micro_batch_size = micro_batch_size;
  options.global_batch_size = global_batch_size;
  options.rank = rank;
  options.num_ranks = num_ranks;
  return options;
}

// The inputs of a step, over all ranks in the order in which the samples lie in the global batch.
std::vector<int32_t> global_inputs(int64_t micro_batch_size, int64_t num_ranks, int64_t step) {
  constexpr int64_t kBatch = 16;
  std::vector<int32_t> inputs(3 * kBatch);
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    BatchLoader loader(counting(), options_of(micro_batch_size, kBatch, rank, num_ranks));
    loader.seek(step * kBatch);
    for (const MicroBatch& micro_batch : loader.next_step().micro_batches) {
      for (size_t row = 0; row < micro_batch.samples_B.size(); ++row) {
        const int64_t place = micro_batch.samples_B[row] - step * kBatch;
        std::copy_n(micro_batch.input_ids_R.begin() + static_cast<std::ptrdiff_t>(3 * row), 3,
                    inputs.begin() + 3 * place);
      }
    }
  }
  return inputs;
}

TEST(BatchLoaderTest, GivesStepsInOrder) {
  BatchLoader loader(counting(), options_of(2, 4));
  const StepBatch& first = loader.next_step();
  ASSERT_EQ(first.micro_batches.size(), 2U);
  EXPECT_EQ(first.step, 0);
  EXPECT_EQ(first.num_valid_tokens, 12);
  EXPECT_THAT(first.micro_batches[1].input_ids_R, ElementsAre(20, 21, 22, 30, 31, 32));
  EXPECT_THAT(first.micro_batches[1].labels_R, ElementsAre(21, 22, 23, 31, 32, 33));
  EXPECT_THAT(first.micro_batches[1].sequence_offsets, ElementsAre(0, 3, 6));
  EXPECT_THAT(first.micro_batches[1].samples_B, ElementsAre(2, 3));
  EXPECT_EQ(loader.consumed_samples(), 4);
  for (int64_t step = 1; step < 20; ++step) {
    const StepBatch& batch = loader.next_step();
    EXPECT_EQ(batch.step, step);
    EXPECT_EQ(batch.micro_batches[0].input_ids_R[0], 40 * step);
  }
}

TEST(BatchLoaderTest, SameSamplesForAnyMicroBatchAndNumberOfRanks) {
  const std::vector<int32_t> want = global_inputs(16, 1, 3);
  EXPECT_EQ(want[0], 480);
  for (const auto& [b, ranks] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {4, 1}, {2, 2}, {1, 4}, {4, 4}, {2, 8}}) {
    EXPECT_EQ(global_inputs(b, ranks, 3), want) << b << " rows, " << ranks << " ranks";
  }
}

TEST(BatchLoaderTest, SeeksToAnyStepAtOnce) {
  BatchLoader loader(counting(), options_of(1, 5));
  for (const int64_t step : {900, 3, 4, 0, 20000}) {
    loader.seek(5 * step);
    EXPECT_EQ(loader.consumed_samples(), 5 * step);
    EXPECT_EQ(loader.next_step().step, step);
    EXPECT_EQ(loader.next_step().micro_batches[0].input_ids_R[0], 50 * (step + 1));
  }
  EXPECT_THROW(loader.seek(7), ConfigError);
}

TEST(BatchLoaderTest, CountsTheValidLabelsOfAllRanks) {
  int64_t want = 0;
  for (int32_t sample = 8; sample < 16; ++sample) {
    for (int32_t t = 0; t < 3; ++t) want += (10 * sample + t) % 3 != 0;
  }
  for (const int64_t ranks : {1, 2, 4}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      BatchLoader loader(counting(true), options_of(2, 8, rank, ranks));
      loader.next_step();
      EXPECT_EQ(loader.next_step().num_valid_tokens, want);
    }
  }
}

TEST(BatchLoaderTest, ShiftsDocumentStartsToTheirRow) {
  BatchLoader loader(counting(true), options_of(3, 3));
  EXPECT_THAT(loader.next_step().micro_batches[0].sequence_offsets,
              ElementsAre(0, 2, 3, 5, 6, 8, 9));
}

TEST(BatchLoaderTest, HandsOverWhatReadingThrewAtItsStepAndGoesOnAfterASeek) {
  BatchLoader loader(counting(false, 10), options_of(1, 4));
  loader.next_step();
  loader.next_step();
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      loader.next_step();
      FAIL();
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("sample 10: past the end"));
    }
  }
  loader.seek(4);
  EXPECT_EQ(loader.next_step().step, 1);
}

TEST(BatchLoaderTest, RefusesSizesThatDoNotDivide) {
  try {
    BatchLoader loader(counting(), options_of(3, 8));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("global_batch_size: expected a multiple of micro_batch_size 3"));
  }
}

}  // namespace
}  // namespace deltatrain::data
