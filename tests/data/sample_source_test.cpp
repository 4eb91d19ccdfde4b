#include "data/sample_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "data/loader.h"
#include "formats/indexed_dataset.h"
#include "support/test_files.h"

namespace deltatrain::data {
namespace {

using formats::IndexedDatasetWriter;
using formats::TokenType;
using testing::ElementsAre;
using testing::HasSubstr;

struct Row {
  std::vector<int32_t> input_ids, labels, starts;
};

Row read_row(const SampleSource& source, int64_t sample) {
  Row row;
  row.input_ids.resize(static_cast<size_t>(source.seq_length()), -1);
  row.labels.resize(static_cast<size_t>(source.seq_length()), -1);
  source.read(sample, row.input_ids, row.labels, &row.starts);
  return row;
}

class SampleSourceTest : public testing::Test {
 protected:
  // Documents of these lengths; the tokens are 0, 1, 2, ... through the file.
  std::string write(const std::vector<int32_t>& lengths, const std::string& name = "text") {
    IndexedDatasetWriter writer((folder_ / name).string(), TokenType::kI32);
    int32_t next = 0;
    for (const int32_t length : lengths) {
      std::vector<int32_t> tokens(static_cast<size_t>(length));
      std::iota(tokens.begin(), tokens.end(), next);
      next += length;
      writer.add_document(tokens);
    }
    writer.commit();
    return (folder_ / name).string();
  }

  static std::unique_ptr<const SampleSource> open(const std::string& prefix, DataOrder order,
                                                  int64_t seq_length, int64_t num_samples = 0,
                                                  uint64_t seed = 0) {
    SourceOptions options;
    options.prefix = prefix;
    options.order = order;
    options.seq_length = seq_length;
    options.num_samples = num_samples;
    options.seed = seed;
    return open_sample_source(options);
  }

  static std::unique_ptr<const SampleSource> open_packed(const std::string& prefix,
                                                         int64_t seq_length) {
    SourceOptions options;
    options.prefix = prefix;
    options.order = DataOrder::kSequential;
    options.seq_length = seq_length;
    options.packed = true;
    return open_sample_source(options);
  }

  test::TemporaryFolder folder_;
};

TEST_F(SampleSourceTest, SequentialGivesTheFileInOrderAndStartsAgain) {
  const auto source = open(write({5, 3, 6}), DataOrder::kSequential, 4);
  EXPECT_EQ(source->epoch_samples(), 3);
  EXPECT_EQ(source->num_tokens(), 14);
  EXPECT_THAT(read_row(*source, 1).input_ids, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(read_row(*source, 1).labels, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(read_row(*source, 2).labels, ElementsAre(9, 10, 11, 12));
  EXPECT_THAT(read_row(*source, 3).input_ids, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(source->describe(2), "sequence 2 offset 0");
  EXPECT_EQ(source->labels_per_sample(), 4);
}

// Order 7 2 9 1 0 8 4 5 6 3 of these documents and shuffled samples 3 11 2 ...: the vector of
// megatron_order_test, followed to the tokens by hand.
TEST_F(SampleSourceTest, MegatronFollowsTheShuffledDocuments) {
  const auto source =
      open(write({5, 3, 8, 1, 7, 4, 6, 2, 9, 5}), DataOrder::kMegatron, 4, 10, 1234);
  // Sample 3 runs from (2, 2) to (3, 1): document 9
  // (tokens 45 to 49) from its third, document 1 (5 to 7).
  const Row row = read_row(*source, 0);
  EXPECT_THAT(row.input_ids, ElementsAre(47, 48, 49, 5));
  EXPECT_THAT(row.labels, ElementsAre(48, 49, 5, 6));
  EXPECT_THAT(row.starts, ElementsAre(0, 3));
  EXPECT_EQ(source->describe(0), "sequence 9 offset 2");
  // Sample 11 runs from (8, 1) to (8, 5): document 6 (28 to 33).
  EXPECT_THAT(read_row(*source, 1).input_ids, ElementsAre(29, 30, 31, 32));
  EXPECT_THROW(read_row(*source, 12), ConfigError);
}

TEST_F(SampleSourceTest, PackedDocumentsTakeNoLabelFromTheNext) {
  const auto source = open_packed(write({2, 1, 1, 3, 5}), 6);
  const Row row = read_row(*source, 0);
  EXPECT_THAT(row.input_ids, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(row.labels, ElementsAre(1, kNoLabel, kNoLabel, kNoLabel, 5, 6));
  EXPECT_THAT(row.starts, ElementsAre(0, 2, 3, 4));
  EXPECT_EQ(source->labels_per_sample(), -1);
}

TEST_F(SampleSourceTest, PackedRowThatEndsWithItsDocumentHasNoLastLabel) {
  const auto source = open_packed(write({4, 4}), 4);
  EXPECT_THAT(read_row(*source, 0).labels, ElementsAre(1, 2, 3, kNoLabel));
  EXPECT_THAT(read_row(*source, 0).starts, ElementsAre(0));
}

// What memory is planned for: never below what a sample has, in any order.
TEST_F(SampleSourceTest, MostStartsBoundEverySample) {
  const std::string prefix = write({2, 1, 1, 3, 5, 1, 1, 1, 9, 4, 2, 2, 17, 1});
  for (const DataOrder order :
       {DataOrder::kSequential, DataOrder::kMegatron, DataOrder::kMegatronCyclic}) {
    for (const int64_t seq_length : {1, 3, 6, 11}) {
      SourceOptions options;
      options.prefix = prefix;
      options.order = order;
      options.seq_length = seq_length;
      EXPECT_EQ(open_sample_source(options)->max_starts(), 1);
      options.packed = true;
      const auto source = open_sample_source(options);
      size_t most = 1;
      for (int64_t i = 0; i < source->epoch_samples(); ++i)
        most = std::max(most, read_row(*source, i).starts.size());
      EXPECT_GE(source->max_starts(), static_cast<int64_t>(most)) << seq_length;
      EXPECT_LE(source->max_starts(), std::min(seq_length, static_cast<int64_t>(most) + 1));
    }
  }
}

TEST_F(SampleSourceTest, MasksTheLabelAfterTheEndOfDocument) {
  SourceOptions options;
  options.prefix = write({3, 7});
  options.order = DataOrder::kSequential;
  options.seq_length = 4;
  options.eod_id = 2;
  const auto source = open_sample_source(options);
  EXPECT_THAT(read_row(*source, 0).labels, ElementsAre(1, 2, kNoLabel, 4));
}

TEST_F(SampleSourceTest, EveryTokenOfAnEpochOnceInAnyOrder) {
  const auto source = open(write({5, 3, 8, 1, 7, 4, 6, 2, 9, 6}), DataOrder::kMegatron, 5, 0, 3);
  std::vector<int32_t> inputs;
  for (int64_t i = 0; i < source->epoch_samples(); ++i) {
    const Row row = read_row(*source, i);
    inputs.insert(inputs.end(), row.input_ids.begin(), row.input_ids.end());
  }
  std::sort(inputs.begin(), inputs.end());
  EXPECT_EQ(std::adjacent_find(inputs.begin(), inputs.end()), inputs.end());
  EXPECT_EQ(inputs.size(), 50U);
}

// A sparse file of 6 GiB: three sequences of 2^30 tokens of 16 bits, all 0 but where a test writes.
TEST_F(SampleSourceTest, ReachesTokensPastTwoToThe31) {
  constexpr int64_t kLength = int64_t{1} << 30;
  constexpr int64_t T = int64_t{1} << 20;
  const std::string prefix = (folder_ / "large").string();
  std::string index("MMIDIDX\0\0", 9);
  const auto put = [&](auto value) {
    index.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(uint64_t{1});
  put(uint8_t{8});
  put(uint64_t{3});
  put(uint64_t{4});
  for (int i = 0; i < 3; ++i) put(static_cast<int32_t>(kLength));
  for (int64_t i = 0; i < 3; ++i) put(2 * kLength * i);
  for (int64_t i = 0; i < 4; ++i) put(i);
  write_file_atomically(prefix + ".idx", index);
  write_file_atomically(prefix + ".bin", "");
  std::filesystem::resize_file(prefix + ".bin", static_cast<uintmax_t>(6 * kLength));
  const auto mark = [&](int64_t token, uint16_t id) {
    std::fstream file(prefix + ".bin", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(2 * token);
    file.write(reinterpret_cast<const char*>(&id), 2);
    ASSERT_TRUE(file.good());
  };
  const auto expect_marks = [&](const Row& row, int32_t first, int32_t last_label) {
    EXPECT_EQ(row.input_ids.front(), first);
    EXPECT_EQ(row.labels.back(), last_label);
    EXPECT_EQ(std::accumulate(row.input_ids.begin(), row.input_ids.end(), int64_t{0}), first);
    EXPECT_EQ(std::accumulate(row.labels.begin(), row.labels.end(), int64_t{0}), last_label);
  };

  const auto sequential = open(prefix, DataOrder::kSequential, T);
  EXPECT_EQ(sequential->num_tokens(), 3 * kLength);
  EXPECT_EQ(sequential->epoch_samples(), 3071);  // 3072 T tokens make one fewer
  mark(3070 * T, 7);
  mark(3071 * T, 9);
  expect_marks(read_row(*sequential, 3070), 7, 9);
  expect_marks(read_row(*sequential, 0), 0, 0);

  // Of the shuffled samples, one that begins in the last sequence behind the marks there.
  const auto shuffled = open(prefix, DataOrder::kMegatron, T, 0, 5);
  EXPECT_EQ(shuffled->num_samples(), 3071);
  int64_t sample = 0;
  int64_t offset = 0;
  for (; sample < 3071; ++sample) {
    const std::string place = shuffled->describe(sample);
    offset = std::stoll(place.substr(place.rfind(' ')));
    if (place.starts_with("sequence 2 ") && offset > T && offset < 1000 * T) break;
  }
  ASSERT_LT(sample, 3071);
  mark(2 * kLength + offset, 3);
  mark(2 * kLength + offset + T, 4);
  expect_marks(read_row(*shuffled, sample), 3, 4);
}

TEST_F(SampleSourceTest, FindsTheOutputOfPrepareByItsPrefix) {
  const std::string prefix = write({9}, "corpus_text_document");
  const std::string base = (folder_ / "corpus").string();
  EXPECT_EQ(find_token_files(base), prefix);
  EXPECT_EQ(find_token_files(prefix), prefix);
  EXPECT_EQ(find_token_files(prefix + ".bin"), prefix);
  try {
    find_token_files((folder_ / "absent").string());
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("absent.idx or"));
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
  }
}

TEST_F(SampleSourceTest, NamesATokenPastTheVocabulary) {
  SourceOptions options;
  options.prefix = write({5, 9});
  options.order = DataOrder::kSequential;
  options.seq_length = 4;
  options.vocab_size = 8;
  const auto source = open_sample_source(options);
  read_row(*source, 0);
  try {
    read_row(*source, 1);
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("text.bin: token 8 (sequence 1, position 3): expected an id below 8"));
    EXPECT_THAT(error.what(), HasSubstr("got 8"));
  }
}

TEST_F(SampleSourceTest, RefusesAFileShorterThanASample) {
  try {
    open(write({2, 2}), DataOrder::kSequential, 4);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected at least seq_length + 1 = 5, got 4"));
  }
}

TEST_F(SampleSourceTest, PartsOfASplitShareNoSequence) {
  SourceOptions options;
  options.prefix = write({5, 3, 8, 1, 7, 4, 6, 2, 9, 5});
  options.order = DataOrder::kSequential;
  options.seq_length = 2;
  options.split = "60,40,0";
  EXPECT_EQ(open_sample_source(options)->num_tokens(), 28);
  options.part = SplitPart::kValid;
  const auto valid = open_sample_source(options);
  EXPECT_EQ(valid->num_tokens(), 22);
  EXPECT_THAT(read_row(*valid, 0).input_ids, ElementsAre(28, 29));
  EXPECT_THAT(read_row(*valid, valid->epoch_samples()).input_ids, ElementsAre(28, 29));
  options.order = DataOrder::kMegatron;
  const auto shuffled = open_sample_source(options);
  for (int64_t i = 0; i < shuffled->num_samples(); ++i) {
    EXPECT_GE(read_row(*shuffled, i).input_ids[0], 28);
  }
  options.part = SplitPart::kTest;
  EXPECT_THROW(open_sample_source(options), ConfigError);
}

TEST_F(SampleSourceTest, BlendsFilesByWeight) {
  const std::string a = write({40, 40}, "a");
  const std::string b = write({300}, "b");
  const auto source = open("1 " + a + " 3 " + b, DataOrder::kMegatron, 4, 40);
  EXPECT_EQ(source->num_samples(), 40);
  std::vector<int> counts(2, 0);
  for (int64_t i = 0; i < 40; ++i) ++counts[source->describe(i).starts_with("file 2 ") ? 1 : 0];
  EXPECT_THAT(counts, ElementsAre(10, 30));
}

TEST_F(SampleSourceTest, BlendsFilesWithoutWeightsByTheirSize) {
  const std::string a = write({41}, "a");
  const std::string b = write({81}, "b");
  const auto all = open(a + " " + b, DataOrder::kMegatron, 4);
  EXPECT_EQ(all->num_samples(), 30);
  EXPECT_EQ(open(a + " " + b, DataOrder::kMegatron, 4, 12)->num_samples(), 12);
}

// 50 samples, 8 a step: step 22 lies in the fourth epoch.
TEST_F(SampleSourceTest, ResumesInALaterEpochWhereItStopped) {
  const std::string prefix = write(std::vector<int32_t>(50, 4));
  for (const DataOrder order : {DataOrder::kSequential, DataOrder::kMegatronCyclic,
                                DataOrder::kTorchDistributed, DataOrder::kHfTrainer}) {
    const auto inputs = [&](int64_t first_step, int64_t num_steps) {
      const LoaderOptions options{.micro_batch_size = 2, .global_batch_size = 8};
      BatchLoader loader(open(prefix, order, 4, 0, 42), options);
      loader.seek(8 * first_step);
      std::vector<int32_t> ids;
      for (int64_t step = 0; step < num_steps; ++step) {
        for (const MicroBatch& batch : loader.next_step().micro_batches)
          ids.insert(ids.end(), batch.input_ids_R.begin(), batch.input_ids_R.end());
      }
      return ids;
    };
    const std::vector<int32_t> whole = inputs(0, 30);
    const auto order_number = static_cast<int>(order);
    EXPECT_EQ(inputs(22, 8), std::vector<int32_t>(whole.begin() + 22 * 32, whole.end()))
        << order_number;
    if (order == DataOrder::kSequential) continue;
    // Not the order of the first epoch once more.
    EXPECT_NE(inputs(0, 8), std::vector<int32_t>(whole.begin() + 22 * 32, whole.end()))
        << order_number;
  }
}

TEST_F(SampleSourceTest, CyclicOrderNeverEnds) {
  const auto source = open(write({50, 51}), DataOrder::kMegatronCyclic, 4);
  EXPECT_EQ(source->epoch_samples(), 25);
  EXPECT_NO_THROW(read_row(*source, 1000));
}

}  // namespace
}  // namespace deltatrain::data
