// Rows as datasets.map with Flash Linear Attention's function would make them. The documents' order
// is numpy's default_rng(42).permutation(10), written down from numpy: 5 6 0 7 3 2 4 9 1 8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "formats/arrow_ipc.h"
#include "formats/indexed_dataset.h"
#include "prepare/prepare.h"
#include "prepare/raw_files.h"
#include "prepare/row_conversion.h"
#include "support/test_files.h"

namespace deltatrain::prepare {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class RowAssemblyTest : public testing::Test {
 protected:
  void SetUp() override {
    // Document i is i + 1 times the i-th letter.
    std::string lines;
    for (int i = 0; i < 10; ++i) {
      lines += "{\"text\":\"" +
               std::string(static_cast<size_t>(i) + 1, static_cast<char>('a' + i)) + "\"}\n";
    }
    options_.inputs = {test::write_raw(folder_ / "raw" / "a.jsonl", lines)};
    options_.out = (folder_ / "out" / "rows").string();
    options_.layout = OutputLayout::kRows;
    options_.records.on_empty_text = OnEmptyText::kKeep;
    options_.rows.seq_length = 4;
    options_.rows.map_batch_size = 2;
    options_.rows.map_processes = 3;
    options_.num_workers = 2;
  }

  PrepareResult run() {
    TextEncoder encoder;
    encoder.encode = [](std::string_view text, std::vector<int32_t>& ids) {
      for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    };
    encoder.vocab_size = 256;
    encoder.identity = encoder.description = "bytes";
    return prepare_token_files(options_, encoder, silent_reporter());
  }

  std::string refusal() {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  }

  std::vector<std::string> rows_of(const std::string& file) const {
    const formats::ArrowFile arrow(options_.out + "/" + file);
    std::vector<std::string> rows;
    for (int64_t b = 0; b < arrow.num_batches(); ++b) {
      const formats::ArrowListColumn column = arrow.list_column(b, "input_ids");
      for (int64_t i = 0; i < column.num_rows(); ++i) {
        std::vector<int32_t> ids(static_cast<size_t>(column.length(i)));
        column.read(i, 0, ids);
        rows.emplace_back(ids.begin(), ids.end());
      }
    }
    return rows;
  }

  std::string json_of(const std::string& name) const {
    return nlohmann::json::parse(read_file(options_.out + "/" + name)).dump();
  }

  test::TemporaryFolder folder_;
  PrepareOptions options_;
};

// Processes get 4, 3 and 3 documents: (5 6) (0 7), (3 2) (4), (9 1) (8).
TEST_F(RowAssemblyTest, DropsTheTailOfEachBatch) {
  const PrepareResult result = run();
  EXPECT_EQ(result.counts.tokens, 55);
  EXPECT_EQ(result.rows, 12);
  EXPECT_EQ(result.dropped_tokens, 55 - 12 * 4);
  EXPECT_THAT(rows_of("data-00000-of-00003.arrow"), ElementsAre("ffff", "ffgg", "gggg", "ahhh"));
  EXPECT_THAT(rows_of("data-00001-of-00003.arrow"), ElementsAre("hhhh", "dddd", "eeee", "jjjj"));
  EXPECT_THAT(rows_of("data-00002-of-00003.arrow"), ElementsAre("jjjj", "jjbb", "iiii", "iiii"));
}

TEST_F(RowAssemblyTest, DropsOneTailWhereAsked) {
  options_.rows.drop_tails = DropTails::kOnce;
  options_.rows.map_processes = 1;
  const PrepareResult result = run();
  EXPECT_EQ(result.rows, 13);
  EXPECT_EQ(result.dropped_tokens, 3);
  EXPECT_THAT(rows_of("data-00000-of-00001.arrow"),
              ElementsAre("ffff", "ffgg", "gggg", "gahh", "hhhh", "hhdd", "ddcc", "ceee", "eejj",
                          "jjjj", "jjjj", "bbii", "iiii"));
}

// With as many documents as processes or fewer, each is a batch of its own; files have a row or
// more.
TEST_F(RowAssemblyTest, ProcessesAreNoMoreThanDocumentsAndFilesNoMoreThanRows) {
  options_.rows.shuffle = false;
  options_.rows.map_processes = 64;
  const PrepareResult result = run();
  EXPECT_EQ(result.rows, 1 + 1 + 1 + 1 + 2 + 2 + 2);  // documents of 4 to 10 tokens
  EXPECT_THAT(rows_of("data-00000-of-00010.arrow"), ElementsAre("dddd"));
  EXPECT_THAT(rows_of("data-00009-of-00010.arrow"), ElementsAre("jjjj"));
}

TEST_F(RowAssemblyTest, FolderIsWhatDatasetsWouldSave) {
  const PrepareResult result = run();
  EXPECT_EQ(result.outputs.size(), 5U);
  const auto state = nlohmann::json::parse(read_file(options_.out + "/state.json"));
  EXPECT_EQ(state.at("_data_files").size(), 3U);
  EXPECT_EQ(state.at("_data_files")[1].at("filename"), "data-00001-of-00003.arrow");
  EXPECT_EQ(state.at("_split"), "train");
  EXPECT_EQ(state.at("_fingerprint").get<std::string>().size(), 16U);
  EXPECT_THAT(
      json_of("dataset_info.json"),
      HasSubstr(R"("input_ids":{"_type":"List","feature":{"_type":"Value","dtype":"int32"}})"));
  const auto manifest = nlohmann::json::parse(read_file(options_.out + ".manifest.json"));
  EXPECT_EQ(manifest.at("rows"), 12);
  EXPECT_EQ(manifest.at("dropped_tokens"), 7);
  EXPECT_EQ(manifest.at("outputs")[0].at("file").at("file"), "rows/data-00000-of-00003.arrow");
  EXPECT_FALSE(fs::exists(options_.out + ".parts"));
}

// An empty text counts as a document: it takes a place in the order and in its batch.
TEST_F(RowAssemblyTest, EmptyTextsTakeTheirPlace) {
  options_.inputs = {test::write_raw(folder_ / "raw" / "b.jsonl",
                                     "{\"text\":\"aaa\"}\n{\"text\":\"\"}\n{\"text\":\"bbb\"}\n")};
  options_.rows = {.seq_length = 3, .map_batch_size = 2, .map_processes = 1, .shuffle = false};
  run();
  EXPECT_THAT(rows_of("data-00000-of-00001.arrow"), ElementsAre("aaa", "bbb"));
  options_.overwrite = true;
  options_.rows.seq_length = 6;
  EXPECT_THAT(refusal(), HasSubstr("rows: expected at least one of 6 ids, got none from 6 ids"));
  options_.records.on_empty_text = OnEmptyText::kSkip;
  run();
  EXPECT_THAT(rows_of("data-00000-of-00001.arrow"), ElementsAre("aaabbb"));
}

TEST_F(RowAssemblyTest, FinishedRunIsNotRepeatedAndNothingIsWrittenOver) {
  run();
  const PrepareResult again = run();
  EXPECT_TRUE(again.already_there);
  EXPECT_EQ(again.rows, 12);
  EXPECT_EQ(again.outputs.size(), 5U);
  options_.rows.map_batch_size = 3;
  EXPECT_THAT(refusal(), HasSubstr("map_batch_size 3 against 2"));
  fs::remove(options_.out + ".manifest.json");
  EXPECT_THAT(refusal(), HasSubstr("got a file without a manifest"));
  options_.overwrite = true;
  test::write_raw(options_.out + "/precious.txt", "kept");
  run();
  EXPECT_TRUE(fs::exists(options_.out + "/precious.txt"));
}

// Killed between the files of the rows: nothing can be opened, and the next run makes all anew.
TEST_F(RowAssemblyTest, GoesOnAfterAKillWhileRowsArePutTogether) {
  options_.num_machines = 2;
  run();
  options_.machine = 1;
  run();
  test::write_raw(options_.out + "/data-00000-of-00009.arrow", "left");
  test::write_raw(options_.out + "/data-00001-of-00009.arrow.tmp-7", "left");
  options_.num_machines = 1;
  options_.machine = 0;
  options_.merge = true;
  EXPECT_EQ(run().rows, 12);
  EXPECT_FALSE(fs::exists(options_.out + "/data-00000-of-00009.arrow"));
  EXPECT_FALSE(fs::exists(options_.out + "/data-00001-of-00009.arrow.tmp-7"));
}

TEST_F(RowAssemblyTest, RefusesWhatHasNoMeaning) {
  options_.num_partitions = 4;
  EXPECT_THAT(refusal(), HasSubstr("--layout fla with --partitions"));
  options_.num_partitions = 1;
  options_.rows.seq_length = 0;
  EXPECT_THAT(refusal(), HasSubstr("--seq-length: expected at least 1, got 0"));
}

class RowConversionTest : public RowAssemblyTest {
 protected:
  void SetUp() override {
    RowAssemblyTest::SetUp();
    run();
    conversion_.folder = options_.out;
    conversion_.out = (folder_ / "converted" / "tokens").string();
  }

  std::string conversion_refusal() {
    try {
      convert_rows(conversion_, silent_reporter());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  }

  ConversionOptions conversion_;
};

TEST_F(RowConversionTest, EachRowIsASequence) {
  const ConversionResult result = convert_rows(conversion_, silent_reporter());
  EXPECT_EQ(result.rows, 12);
  EXPECT_EQ(result.row_length, 4);
  EXPECT_EQ(result.checked_rows, 9);  // first, middle and last of three files
  const formats::IndexedDataset dataset(conversion_.out);
  EXPECT_EQ(dataset.type(), formats::TokenType::kI32);
  EXPECT_EQ(dataset.num_documents(), 12);
  std::vector<int32_t> ids(48);
  dataset.read(0, ids, 0);
  EXPECT_EQ(std::string(ids.begin(), ids.end()),
            "ffffffggggggahhhhhhhddddeeeejjjjjjjjjjbbiiiiiiii");
}

// 34 bytes of header, 12 lengths and 12 offsets, then the document indices.
TEST_F(RowConversionTest, DocumentIndicesAreMegatronsOrFlas) {
  const auto indices = [&](formats::DocumentIndices form) {
    conversion_.indices = form;
    conversion_.overwrite = true;
    convert_rows(conversion_, silent_reporter());
    const std::string bytes = read_file(conversion_.out + ".idx").substr(34 + 12 * 12);
    std::vector<int64_t> values(bytes.size() / 8);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    EXPECT_EQ(formats::IndexedDataset(conversion_.out).num_documents(), 12);
    return values;
  };
  EXPECT_THAT(indices(formats::DocumentIndices::kMegatron),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  EXPECT_THAT(indices(formats::DocumentIndices::kFla),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
}

TEST_F(RowConversionTest, NamesTheRowThatDoesNotFit) {
  conversion_.vocab_size = 'j';
  EXPECT_THAT(
      conversion_refusal(),
      HasSubstr("data-00001-of-00003.arrow: row 3: position 0: expected an id from 0 to 105, "
                "got 106"));
  EXPECT_TRUE(fs::is_empty(folder_ / "converted"));
  conversion_.vocab_size = 0;
  const std::string file = options_.out + "/data-00002-of-00003.arrow";
  formats::ArrowListWriter writer(file, "input_ids", "");
  writer.write_batch(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}, 4);
  writer.write_batch(std::vector<int32_t>{1, 2, 3}, 3);
  writer.commit();
  EXPECT_THAT(
      conversion_refusal(),
      HasSubstr("data-00002-of-00003.arrow: row 2: expected 4 ids like the first row of all, "
                "got 3"));
  fs::resize_file(file, fs::file_size(file) - 20);
  EXPECT_THAT(conversion_refusal(), HasSubstr("data-00002-of-00003.arrow: byte "));
  fs::remove(file);
  EXPECT_THAT(conversion_refusal(), HasSubstr("data-00002-of-00003.arrow"));
}

TEST_F(RowConversionTest, NothingIsWrittenOver) {
  convert_rows(conversion_, silent_reporter());
  EXPECT_THAT(conversion_refusal(), HasSubstr("tokens.bin: expected no earlier output"));
}

}  // namespace
}  // namespace deltatrain::prepare
