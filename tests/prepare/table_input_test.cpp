// Tables as input: Arrow files of other writers (tests/golden/make_arrow.py), in whole and damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "formats/text_column.h"
#include "prepare/raw_files.h"
#include "prepare/records.h"
#include "support/test_files.h"

namespace deltatrain::prepare {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class Collector final : public DocumentSink {
 public:
  void document(std::string_view text) override { texts.emplace_back(text); }
  void skipped(const char* reason) override { texts.push_back(std::string("<") + reason + ">"); }
  void replaced(const char*, int64_t) override { texts.emplace_back("<replaced>"); }
  std::vector<std::string> texts;
};

class TableInputTest : public testing::Test {
 protected:
  std::vector<std::string> read(const InputFile& file, int64_t begin, int64_t end,
                                int64_t block_bytes = 1 << 19) {
    RecordParser parser(options_);
    Collector collector;
    const FileRange range{&file, begin, end};
    const auto reader = open_block_reader(range, options_, block_bytes);
    for (Block block; reader->next(block);) parser.parse(block, collector);
    return collector.texts;
  }

  static InputFile input(const fs::path& path, const std::string& format = "auto") {
    return find_input_files({path.string()}, format).files.at(0);
  }

  std::string refusal(const InputFile& file) {
    try {
      check_table(file, options_);
      read(file, 0, file.bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  }

  test::TemporaryFolder folder_;
  RecordOptions options_;
};

TEST_F(TableInputTest, ArrowRowsAreDocuments) {
  const InputFile file = input(test::golden_path("arrow_text.arrow"));
  EXPECT_EQ(file.format, FileFormat::kArrow);
  options_.on_bad_document = OnBadDocument::kSkip;
  EXPECT_THAT(read(file, 0, file.bytes),
              ElementsAre("one", "<null>", "<empty>", "vier \xc3\xa9\xf0\x9f\x91\x8d"));
  options_.text_column = "long_text";
  options_.on_empty_text = OnEmptyText::kKeep;
  EXPECT_THAT(read(file, 0, file.bytes, /*block_bytes=*/1),
              ElementsAre("first", "", "<null>", "last"));
}

// However a file is cut into ranges, each batch is read once.
TEST_F(TableInputTest, RangesShareTheBatches) {
  const InputFile file = input(test::golden_path("arrow_text.arrow"));
  options_.on_bad_document = OnBadDocument::kSkip;
  const std::vector<std::string> want = read(file, 0, file.bytes);
  EXPECT_TRUE(can_split(file, options_));
  for (int64_t step = 1; step <= file.bytes; step += 37) {
    std::vector<std::string> got;
    for (int64_t begin = 0; begin < file.bytes; begin += step) {
      for (const std::string& text : read(file, begin, std::min(begin + step, file.bytes)))
        got.push_back(text);
    }
    ASSERT_EQ(got, want) << step;
  }
}

TEST_F(TableInputTest, NamesFileAndRow) {
  const InputFile file = input(test::golden_path("arrow_text.arrow"));
  EXPECT_THAT(refusal(file), HasSubstr("arrow_text.arrow: row 1: column text: expected a text, got "
                                       "null"));
  options_.on_bad_document = OnBadDocument::kSkip;
  options_.max_document_bytes = 4;
  EXPECT_THAT(read(file, 0, file.bytes), ElementsAre("one", "<null>", "<empty>", "<oversized>"));
  options_.text_column = "rows";
  EXPECT_THAT(refusal(file), HasSubstr("column rows: expected a text, got fixed list<int32>"));
  options_.text_column = "body";
  EXPECT_THAT(refusal(file),
              HasSubstr("column body: expected this column, got only id, text, long_text, rows"));
  options_.text_column = "text";
  EXPECT_THAT(refusal(input(test::golden_path("arrow_zstd.arrow"))), HasSubstr("compressed"));
}

TEST_F(TableInputTest, CutOffAtAnyByteIsRefused) {
  const std::string whole = read_file(test::golden_path("arrow_text.arrow"));
  options_.on_bad_document = OnBadDocument::kSkip;
  const std::vector<std::string> want =
      read(input(test::golden_path("arrow_text.arrow")), 0, static_cast<int64_t>(whole.size()));
  for (size_t size = 0; size < whole.size(); size += 11) {
    const InputFile file = input(test::write_raw(folder_ / "a.arrow", whole.substr(0, size)));
    const std::string error = refusal(file);
    // The footer is not needed, so a file cut within it still has all its rows.
    if (error == "accepted") {
      EXPECT_EQ(read(file, 0, file.bytes), want) << size;
    } else {
      EXPECT_THAT(error, HasSubstr("a.arrow")) << size;
    }
  }
}

// tests/golden/make_arrow.py says what is in them: 60 rows in groups of 25, or in one.
class ParquetInputTest : public TableInputTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (!formats::reads_parquet()) GTEST_SKIP() << "built without Arrow C++";
    options_.on_bad_document = OnBadDocument::kSkip;
  }

  static std::vector<std::string> rows() {
    std::vector<std::string> texts;
    for (int i = 0; i < 60; ++i) {
      std::string text;
      for (int j = 0; j < i % 5; ++j) text += "text " + std::to_string(i) + " \xc3\xa9";
      texts.push_back(i % 7 == 3 ? "<null>" : text.empty() ? "<empty>" : text);
    }
    return texts;
  }
};

TEST_P(ParquetInputTest, RowsAreDocumentsHoweverTheFileIsCut) {
  const InputFile file = input(test::golden_path(GetParam()));
  EXPECT_EQ(file.format, FileFormat::kParquet);
  EXPECT_EQ(read(file, 0, file.bytes), rows());
  EXPECT_EQ(read(file, 0, file.bytes, /*block_bytes=*/1), rows());
  for (const int64_t step : {int64_t{100}, int64_t{777}}) {
    std::vector<std::string> got;
    for (int64_t begin = 0; begin < file.bytes; begin += step) {
      for (const std::string& text : read(file, begin, std::min(begin + step, file.bytes)))
        got.push_back(text);
    }
    EXPECT_EQ(got, rows()) << step;
  }
}

TEST_P(ParquetInputTest, NamesFileColumnAndRow) {
  const InputFile file = input(test::golden_path(GetParam()));
  options_.text_column = "body";
  EXPECT_THAT(refusal(file), HasSubstr("column body: expected this column, got only id, text, "));
  options_.text_column = "score";
  EXPECT_THAT(refusal(file), HasSubstr("column score: expected a text, got DOUBLE"));
  options_.text_column = "tags.list.element";
  EXPECT_THAT(refusal(file), HasSubstr("expected a text, got a list of BYTE_ARRAY"));
  options_.text_column = "text";
  options_.on_bad_document = OnBadDocument::kStop;
  EXPECT_THAT(refusal(file), HasSubstr(".parquet: row 3: column text: expected a text, got null"));
}

// A file that is cut off has no footer. With a byte changed it is refused by name, or read: pages
// have no checksums by default.
TEST_P(ParquetInputTest, DamagedFilesAreRefusedByName) {
  const std::string whole = read_file(test::golden_path(GetParam()));
  for (size_t size = 0; size < whole.size(); size += 61) {
    EXPECT_THAT(refusal(input(test::write_raw(folder_ / "a.parquet", whole.substr(0, size)))),
                HasSubstr("a.parquet: footer: expected a whole Parquet file"));
  }
  for (size_t i = 0; i < whole.size(); i += 3) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(i % 2 == 0 ? ~bytes[i] : bytes[i] + 1);
    const std::string error = refusal(input(test::write_raw(folder_ / "a.parquet", bytes)));
    if (error != "accepted") {
      EXPECT_THAT(error, HasSubstr("a.parquet: ")) << i;
      EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, ParquetInputTest,
                         testing::Values("table_zstd.parquet", "table_snappy.parquet"),
                         [](const auto& param) { return std::string(param.param).substr(6, 4); });

TEST_F(TableInputTest, ABuildWithoutArrowRefusesParquetByName) {
  if (formats::reads_parquet()) GTEST_SKIP() << "built with Arrow C++";
  const InputFile file = input(test::golden_path("table_zstd.parquet"));
  EXPECT_THAT(refusal(file),
              HasSubstr("table_zstd.parquet: expected a format that this build reads, "
                        "got Parquet: the program was built without Arrow C++"));
}

TEST_F(TableInputTest, FolderOfADataSetIsWhatItsStateNames) {
  const std::string rows = read_file(test::golden_path("arrow_text.arrow"));
  test::write_raw(folder_ / "set" / "data-00000-of-00001.arrow", rows);
  test::write_raw(folder_ / "set" / "data-00000-of-00002.arrow", rows);  // left by an earlier save
  test::write_raw(folder_ / "set" / "state.json",
                  R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})");
  test::write_raw(folder_ / "set" / "dataset_info.json", "{}");
  test::write_raw(folder_ / "other" / "state.json", "{}");
  const InputFiles found = find_input_files({folder_.path().string()}, "auto");
  ASSERT_EQ(found.files.size(), 2U);
  EXPECT_THAT(found.files[0].path, HasSubstr("other/state.json"));
  EXPECT_THAT(found.files[1].path, HasSubstr("set/data-00000-of-00001.arrow"));
  EXPECT_EQ(found.num_ignored, 3);
}

}  // namespace
}  // namespace deltatrain::prepare
