#include "eval/datasets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "formats/text_column.h"  // reads_parquet
#include "support/test_files.h"

namespace deltatrain::eval {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;

Task task_of(const std::string& name) {
  const std::vector<std::string> names = {name};
  return find_tasks(names).at(0);
}

std::vector<Json> documents_of(const std::string& task) {
  std::ifstream file(test::golden_path("eval/harness_facts.jsonl"));
  std::vector<Json> result;
  for (std::string line; std::getline(file, line);) {
    const Json fact = Json::parse(line);
    if (fact.at("kind") == "doc" && fact.at("task") == task) result.push_back(fact.at("doc"));
  }
  return result;
}

class DatasetsTest : public testing::Test {
 protected:
  fs::path put(const std::string& name, const std::string& bytes) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    write_file_atomically(path, bytes);
    return path;
  }
  fs::path put_golden(const std::string& name, const std::string& task) {
    return put(name, read_file(test::golden_path("eval/" + task + ".parquet")));
  }
  Split read(const std::string& task, const std::string& split) const {
    return read_split(folder_.path(), task_of(task), split);
  }
  std::string refusal(const std::string& task, const std::string& split) const {
    try {
      read(task, split);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "accepted";
  }
  const test::TemporaryFolder folder_;
};

// The files' names are those of the repositories; tests/golden/eval/make_parquet.py says what is in the files.
TEST_F(DatasetsTest, RowsOfParquetAreTheDocuments) {
  if (!formats::reads_parquet()) GTEST_SKIP() << "built without Arrow C++";
  const struct {
    const char *task, *split, *path;
  } files[] = {
      {"arc_easy", "test", "allenai/ai2_arc/ARC-Easy/test-00000-of-00001.parquet"},
      {"hellaswag", "validation", "Rowan/hellaswag/data/validation-00000-of-00001.parquet"},
      {"piqa", "validation", "baber/piqa/piqa_validation.parquet"},
      {"winogrande", "validation", "winogrande/winogrande_xl/validation/0000.parquet"},
      {"race", "test", "EleutherAI/race/high/test-00000-of-00001.parquet"},
      {"mmlu_abstract_algebra", "test", "cais/mmlu/abstract_algebra/test-00000-of-00001.parquet"}};
  for (const auto& file : files) {
    const fs::path path = put_golden(file.path, file.task);
    const Split split = read(file.task, file.split);
    // Compared as text: order of columns and the difference between 1 and 1.0 count.
    EXPECT_EQ(Json(split.documents).dump(), Json(documents_of(file.task)).dump()) << file.task;
    EXPECT_EQ(split.where, path.string());
    EXPECT_EQ(split.digests.size(), 1U);
  }
}

TEST_F(DatasetsTest, PartsOfASplitAreReadInOrder) {
  if (!formats::reads_parquet()) GTEST_SKIP() << "built without Arrow C++";
  put_golden("piqa/validation-00000-of-00002.parquet", "piqa");
  EXPECT_THAT(refusal("piqa", "validation"), HasSubstr("expected all 00002 parts, got 1"));
  put_golden("piqa/validation-00001-of-00002.parquet", "piqa");
  std::vector<Json> twice = documents_of("piqa");
  const std::vector<Json> once = twice;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(read("piqa", "validation").documents, twice);
}

TEST_F(DatasetsTest, NamesFileAndColumnOfParquetThatIsNoDataSetOfTheTask) {
  if (!formats::reads_parquet()) GTEST_SKIP() << "built without Arrow C++";
  put_golden("piqa/validation.parquet", "winogrande");
  EXPECT_THAT(
      refusal("piqa", "validation"),
      EndsWith("piqa/validation.parquet: column goal: expected this column, got only sentence, "
               "option1, option2, answer"));
}

TEST_F(DatasetsTest, DamagedParquetIsRefusedByName) {
  if (!formats::reads_parquet()) GTEST_SKIP() << "built without Arrow C++";
  const std::string whole = read_file(test::golden_path("eval/arc_easy.parquet"));
  for (size_t size = 0; size < whole.size(); size += 61) {
    put("arc_easy/test.parquet", whole.substr(0, size));
    EXPECT_THAT(refusal("arc_easy", "test"),
                HasSubstr("arc_easy/test.parquet: footer: expected a whole Parquet file"));
  }
  int num_refused = 0;
  for (size_t i = 0; i < whole.size(); i += 3) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(i % 2 == 0 ? ~bytes[i] : bytes[i] + 1);
    put("arc_easy/test.parquet", bytes);
    const std::string error = refusal("arc_easy", "test");
    if (error == "accepted") continue;
    ++num_refused;
    EXPECT_THAT(error, HasSubstr("arc_easy/test.parquet: ")) << i;
  }
  EXPECT_GT(num_refused, 100);
}

TEST_F(DatasetsTest, ABuildWithoutArrowRefusesParquetByName) {
  if (formats::reads_parquet()) GTEST_SKIP() << "built with Arrow C++";
  put_golden("piqa/validation.parquet", "piqa");
  EXPECT_THAT(refusal("piqa", "validation"),
              HasSubstr("piqa/validation.parquet: expected a format that this build reads, got "
                        "Parquet: the program was built without Arrow C++"));
  EXPECT_THAT(refusal("race", "test"), EndsWith("built without Arrow C++, for Parquet"));
}

TEST_F(DatasetsTest, SaysWhichFilesToFetchAndWhereTheyBelong) {
  EXPECT_THAT(refusal("race", "test"),
              HasSubstr("EleutherAI/race/high/test-00000-of-00001.parquet or .jsonl, or " +
                        (folder_ / "race/test").string() +
                        ".parquet or .jsonl; fetch the files of that name of the data set "
                        "EleutherAI/race and put them there"));
}

}  // namespace
}  // namespace deltatrain::eval
