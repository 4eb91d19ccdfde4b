#include "prepare/input_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "prepare/raw_files.h"
#include "support/test_files.h"

namespace deltatrain::prepare {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class InputFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"b.txt", "a.jsonl", "sub/c.txt.gz", "sub/d.jsonl.zst",
                             "sub/.hidden/e.txt", ".f.txt", "g.pdf"}) {
      test::write_raw(folder_.path() / name, "x");
    }
  }

  std::vector<std::string> names(const std::vector<std::string>& inputs,
                                 const std::string& format = "auto") {
    std::vector<std::string> result;
    for (const InputFile& file : find_input_files(inputs, format).files) {
      result.push_back(std::filesystem::relative(file.path, folder_.path()).string());
    }
    return result;
  }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  std::string refusal(const std::vector<std::string>& inputs, const std::string& format = "auto") {
    try {
      find_input_files(inputs, format);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }

  test::TemporaryFolder folder_;
};

TEST_F(InputFilesTest, FoldersAreSearchedAndSorted) {
  EXPECT_THAT(names({folder_.path().string()}),
              ElementsAre("a.jsonl", "b.txt", "sub/c.txt.gz", "sub/d.jsonl.zst"));
  EXPECT_EQ(find_input_files({folder_.path().string()}, "auto").num_ignored, 1);
}

TEST_F(InputFilesTest, InputsKeepTheirOrder) {
  EXPECT_THAT(names({at("b.txt"), at("*.jsonl"), at("sub")}),
              ElementsAre("b.txt", "a.jsonl", "sub/c.txt.gz", "sub/d.jsonl.zst"));
}

TEST_F(InputFilesTest, KnowsFormatAndCompression) {
  const InputFiles found = find_input_files({at("sub"), at("b.txt")}, "auto");
  EXPECT_EQ(found.files[0].format, FileFormat::kText);
  EXPECT_EQ(found.files[0].compression, Compression::kGzip);
  EXPECT_EQ(found.files[1].format, FileFormat::kJsonLines);
  EXPECT_EQ(found.files[1].compression, Compression::kZstd);
  EXPECT_EQ(found.files[2].compression, Compression::kNone);
  EXPECT_EQ(found.files[2].bytes, 1);
}

TEST_F(InputFilesTest, AFormatGivenHoldsForEveryName) {
  EXPECT_EQ(find_input_files({at("g.pdf")}, "txt").files[0].format, FileFormat::kText);
  EXPECT_EQ(find_input_files({at("b.txt")}, "jsonl").files[0].format, FileFormat::kJsonLines);
}

TEST_F(InputFilesTest, NamesWhatCannotBeUsed) {
  EXPECT_THAT(
      refusal({at("none.txt")}),
      HasSubstr("none.txt: expected a file, folder or glob, got a name that does not exist"));
  EXPECT_THAT(refusal({at("*.parq*")}), HasSubstr("expected matching files, got none"));
  EXPECT_THAT(refusal({at("g.pdf")}), HasSubstr("'g.pdf'"));
  EXPECT_THAT(refusal({at("b.txt"), folder_.path().string()}),
              HasSubstr("expected each file once"));
  EXPECT_THAT(refusal({at("sub/.hidden/../.hidden/../../g.pdf")}), HasSubstr("'g.pdf'"));
  EXPECT_THAT(refusal({at("b.txt")}, "csv"),
              HasSubstr("--format: expected auto, txt, jsonl, arrow or parquet, got 'csv'"));
}

}  // namespace
}  // namespace deltatrain::prepare
