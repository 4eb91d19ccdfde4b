#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class PrepareCommandTest : public testing::Test {
 protected:
  // Two documents of 4 and 6 letters; a vocabulary of bytes, so that a letter is a token.
  void SetUp() override {
    write_file_atomically(folder_ / "in.jsonl", "{\"text\":\"abcd\"}\n{\"text\":\"efghij\"}\n");
    EXPECT_EQ(run("tokenizer train --input " + at("in.jsonl") + " --vocab-size 258 --out " +
                  at("tokenizer"))
                  .exit_code,
              0);
  }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  ProgramResult run(const std::string& arguments) const { return run_program(arguments); }

  std::string prepare(const std::string& out, const std::string& more) const {
    const ProgramResult result = run("prepare --input " + at("in.jsonl") + " --tokenizer " +
                                     at("tokenizer") + " --out " + at(out) + " " + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

  TemporaryFolder folder_;
};

// BOS before each document in both; EOS behind it in token files only.
TEST_F(PrepareCommandTest, EndsDocumentsAsTheLayoutsReferenceDoes) {
  EXPECT_THAT(prepare("a", ""), StartsWith("2 documents, 14 tokens\n"));
  EXPECT_THAT(prepare("b", "--no-append-eod"), StartsWith("2 documents, 12 tokens\n"));
  EXPECT_THAT(prepare("c", "--append-eod --no-special-tokens"),
              StartsWith("2 documents, 12 tokens\n"));
  EXPECT_THAT(prepare("d", "--layout fla --seq-length 5"),
              StartsWith("2 documents, 12 tokens\n2 rows of 5, 2 tokens in none\n"));
  EXPECT_THAT(prepare("e", "--layout fla --seq-length 5 --append-eod --drop-tails end"),
              StartsWith("2 documents, 14 tokens\n2 rows of 5, 4 tokens in none\n"));
}

TEST_F(PrepareCommandTest, ConvertsRowsToTokenFiles) {
  prepare("rows", "--layout fla --seq-length 5");
  const ProgramResult result = run("prepare --convert --input " + at("rows") + " --tokenizer " +
                                   at("tokenizer") + " --out " + at("tokens"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("2 rows of 5, 10 tokens; 2 rows read back\n"));
  EXPECT_EQ(read_file(folder_ / "tokens.bin").size(), 40U);
  const ProgramResult again =
      run("prepare --convert --input " + at("rows") + " --out " + at("tokens"));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("tokens.bin: expected no earlier output"));
}

}  // namespace
}  // namespace deltatrain::test
