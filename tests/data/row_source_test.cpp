#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "data/row_files.h"
#include "data/sample_source.h"
#include "formats/arrow_ipc.h"
#include "formats/indexed_dataset.h"
#include "support/test_files.h"

namespace deltatrain::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RowSourceTest : public testing::Test {
 protected:
  // Rows 0 to 6 hold 100 row + 0, 1, 2, ...
  static std::vector<int32_t> tokens(int64_t first_row, int64_t count, int64_t length = 5) {
    std::vector<int32_t> result;
    for (int64_t row = first_row; row < first_row + count; ++row) {
      for (int64_t i = 0; i < length; ++i) result.push_back(static_cast<int32_t>(100 * row + i));
    }
    return result;
  }

  std::string arrow_folder() {
    const std::string folder = (folder_ / "rows").string();
    std::filesystem::create_directories(folder);
    formats::ArrowListWriter first(folder + "/data-00000-of-00002.arrow", "input_ids", "");
    first.write_batch(tokens(0, 3), 5);
    first.write_batch(tokens(3, 1), 5);
    first.commit();
    formats::ArrowListWriter second(folder + "/data-00001-of-00002.arrow", "input_ids", "");
    second.write_batch(tokens(4, 3), 5);
    second.commit();
    write_file_atomically(folder + "/state.json",
                          R"({"_data_files": [{"filename": "data-00000-of-00002.arrow"},
                              {"filename": "data-00001-of-00002.arrow"}]})");
    return folder;
  }

  std::string indexed() {
    formats::IndexedDatasetWriter writer((folder_ / "rows_text_document").string(),
                                         formats::TokenType::kI32);
    for (int64_t row = 0; row < 7; ++row) writer.add_document(tokens(row, 1));
    writer.commit();
    return (folder_ / "rows").string();
  }

  static SourceOptions options(const std::string& prefix, DataOrder order) {
    SourceOptions result;
    result.prefix = prefix;
    result.order = order;
    result.seq_length = 5;
    result.seed = 42;
    return result;
  }

  template <class Call>
  static std::string refusal(Call call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  test::TemporaryFolder folder_;
};

TEST_F(RowSourceTest, RowsGoOnOverBatchesAndFiles) {
  const auto rows = open_row_files(arrow_folder());
  EXPECT_EQ(rows->num_rows(), 7);
  EXPECT_EQ(rows->row_length(), 5);
  std::vector<int32_t> ids(5);
  for (int64_t row = 0; row < 7; ++row) {
    rows->read(row, ids, 0);
    EXPECT_EQ(ids, tokens(row, 1));
  }
  EXPECT_EQ(rows->describe(4), "row 4 in data-00001-of-00002.arrow");
}

TEST_F(RowSourceTest, LastLabelOfARowIsUnknown) {
  const auto source = open_sample_source(options(arrow_folder(), DataOrder::kHfTrainer));
  std::vector<int32_t> input_ids(5);
  std::vector<int32_t> labels(5);
  source->read(0, input_ids, labels, nullptr);
  const int32_t row = input_ids[0];
  EXPECT_EQ(row % 100, 0);
  EXPECT_THAT(labels, ElementsAre(row + 1, row + 2, row + 3, row + 4, kNoLabel));
  EXPECT_EQ(source->labels_per_sample(), 4);
}

TEST_F(RowSourceTest, ArrowAndItsConversionGiveTheSameSamples) {
  for (const DataOrder order : {DataOrder::kHfTrainer, DataOrder::kTorchDistributed}) {
    const auto arrow = open_sample_source(options(arrow_folder(), order));
    const auto converted = open_sample_source(options(indexed(), order));
    for (int64_t sample = 0; sample < 20; ++sample) {
      std::vector<int32_t> a(5), b(5), labels(5);
      arrow->read(sample, a, labels, nullptr);
      converted->read(sample, b, labels, nullptr);
      EXPECT_EQ(a, b);
    }
  }
}

TEST_F(RowSourceTest, PackedRowsRestartAtEachStartOfADocument) {
  formats::IndexedDatasetWriter writer((folder_ / "packed").string(), formats::TokenType::kI32);
  writer.add_document(std::vector<int32_t>{9, 1, 2, 9, 3});
  writer.commit();
  SourceOptions source_options = options((folder_ / "packed").string(), DataOrder::kHfTrainer);
  source_options.packed = true;
  EXPECT_THAT(refusal([&] { open_sample_source(source_options); }),
              HasSubstr("a tokenizer with a BOS"));
  source_options.document_id = 9;
  const auto source = open_sample_source(source_options);
  std::vector<int32_t> input_ids(5), labels(5), starts;
  source->read(0, input_ids, labels, &starts);
  EXPECT_THAT(labels, ElementsAre(1, 2, kNoLabel, 3, kNoLabel));
  EXPECT_THAT(starts, ElementsAre(0, 3));
  EXPECT_EQ(source->max_starts(), 2);
}

TEST_F(RowSourceTest, NamesWhatDoesNotFit) {
  const std::string folder = arrow_folder();
  SourceOptions source_options = options(folder, DataOrder::kHfTrainer);
  source_options.seq_length = 6;
  EXPECT_THAT(refusal([&] { open_sample_source(source_options); }),
              HasSubstr("rows: expected seq_length = 6 ids, got 5"));
  source_options = options(folder, DataOrder::kHfTrainer);
  source_options.vocab_size = 300;
  const auto source = open_sample_source(source_options);
  EXPECT_THAT(refusal([&] {
                std::vector<int32_t> a(5), b(5);
                for (int64_t i = 0; i < 7; ++i) source->read(i, a, b, nullptr);
              }),
              HasSubstr("expected an id from 0 to 299, got "));
  EXPECT_THAT(refusal([&] { open_row_files(folder, "tokens"); }),
              HasSubstr("column tokens: expected this column, got only input_ids"));

  formats::ArrowListWriter writer(folder + "/data-00001-of-00002.arrow", "input_ids", "");
  writer.write_batch(tokens(0, 1, 4), 4);
  writer.commit();
  EXPECT_THAT(refusal([&] { open_row_files(folder); }),
              HasSubstr("row 4 of the data set: expected 5 ids like the first row, got 4"));
  write_file_atomically(folder + "/state.json", "{}");
  EXPECT_THAT(refusal([&] { open_row_files(folder); }),
              HasSubstr("state.json: _data_files: expected a list of file names"));
}

}  // namespace
}  // namespace deltatrain::data
