#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "support/terminal.h"
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

  // The one line of an error, without the program's name; messages and progress go before it.
  static std::string error_line(const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 2) << result.err;
    std::vector<std::string> errors;
    std::istringstream lines(result.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("deltatrain: ")) errors.push_back(line.substr(12));
      else EXPECT_TRUE(line.starts_with("[")) << line;
    }
    EXPECT_EQ(errors.size(), 1U) << result.err;
    return errors.empty() ? "" : errors.front();
  }

  std::string refusal(const std::vector<std::string>& inputs, const std::string& more = "") const {
    std::string command = "prepare --tokenizer " + at("tokenizer") + " --out " + at("out/bad") + " " + more + " --input";
    for (const std::string& input : inputs) command += " " + input;
    return error_line(run(command));
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

TEST_F(PrepareCommandTest, BadInputIsOneLineThatNamesIt) {
  const std::string good = at("in.jsonl");
  std::ofstream(at("bad.jsonl")) << "{\"text\": \"a\"}\n{\"text\": 7}\n";
  EXPECT_EQ(refusal({good, at("bad.jsonl")}), at("bad.jsonl") + ":2: key text: expected a string, got a number");
  EXPECT_EQ(refusal({good}, "--text-column body"), good + ":1: key body: expected a string, got only the keys text");
  // Files of different columns: each must have the text.
  const std::string text_table = golden_path("arrow_text.arrow").string();
  const std::string row_table = golden_path("arrow_tokens.arrow").string();
  EXPECT_EQ(refusal({text_table, row_table}, "--bad-documents skip"),
            row_table + ": column text: expected this column, got only input_ids");
  EXPECT_EQ(refusal({text_table}, "--text-column rows"), text_table + ": column rows: expected a text, got fixed list<int32>");
  const std::string parquet = read_file(golden_path("table_zstd.parquet"));
  std::ofstream(at("cut.parquet"), std::ios::binary) << parquet.substr(0, parquet.size() / 2);
  EXPECT_THAT(refusal({good, at("cut.parquet")}), StartsWith(at("cut.parquet") + ": "));
  // Nothing was finished and nothing stays.
  EXPECT_FALSE(std::filesystem::exists(at("out/bad.parts")));
  EXPECT_FALSE(std::filesystem::exists(at("out/bad_text_document.bin")));
}

TEST_F(PrepareCommandTest, ATokenizerThatContradictsItselfIsNamed) {
  auto tokenizer = nlohmann::json::parse(read_file(folder_ / "tokenizer" / "tokenizer.json"));
  tokenizer["model"]["merges"].push_back({"a", "zz"});
  std::ofstream(at("tokenizer/tokenizer.json")) << tokenizer.dump();
  EXPECT_EQ(refusal({at("in.jsonl")}), at("tokenizer/tokenizer.json") + ": model.merges[0]: expected tokens of "
                                       "model.vocab (\"zz\" is none), got [\"a\",\"zz\"]");
}

TEST_F(PrepareCommandTest, AnIndexPastItsTokensIsNamed) {
  prepare("a", "");
  std::filesystem::resize_file(at("a_text_document.bin"), 20);
  EXPECT_THAT(error_line(run("prepare --show-order 1 --seq-length 4 --out " + at("a"))),
              StartsWith(at("a_text_document.bin") + ": size: expected at least 28 bytes"));
}

TEST_F(PrepareCommandTest, SharesOfManyMachinesAreMerged) {
  prepare("whole", "");
  for (const std::string share : {"--shard 2/3", "--shard 1/3", "--shard 3/3", "--merge"}) prepare("shared", share);
  for (const std::string end : {".bin", ".idx"})
    EXPECT_EQ(read_file(at("shared_text_document" + end)), read_file(at("whole_text_document" + end)));
  for (const std::string share : {"0/3", "4/3", "1", "1/3x"}) {
    EXPECT_EQ(refusal({at("in.jsonl")}, "--shard " + share), "--shard: expected i/n with i from 1 to n, got '" + share + "'");
  }
}

TEST_F(PrepareCommandTest, ShowsRateAndTimeLeftOnATerminal) {
  {
    std::ofstream lines(at("long.jsonl"));
    const std::string line = "{\"text\":\"" + std::string(100000, 'a') + "\"}\n";
    for (int i = 0; i < 600; ++i) lines << line;
  }
  const ProgramResult result = run_program_on_terminal("prepare --workers 1 --input " + at("long.jsonl") + " --tokenizer " +
                                                       at("tokenizer") + " --out " + at("long"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, testing::ContainsRegex("\\[prepare\\] [0-9.]+[kM]/60.01M B \\|#*[.]*\\| [0-9.]+ % [0-9.]+[kMG]? B/s "
                                                 "ETA [0-9]+:[0-9][0-9]"));
  EXPECT_THAT(result.err, HasSubstr(" 100.0 % "));
}

// Six documents of 4 tokens and seed 42: five samples of 4, as in MegatronOrderTest.DocumentsAsLongAsSamples.
TEST_F(PrepareCommandTest, ShowsTheOrderOfSamples) {
  std::ofstream(at("six.jsonl")) << [] {
    std::string lines;
    for (const char* text : {"aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff"})
      lines += std::string("{\"text\":\"") + text + "\"}\n";
    return lines;
  }();
  EXPECT_EQ(run("prepare --no-special-tokens --no-append-eod --input " + at("six.jsonl") + " --tokenizer " + at("tokenizer") +
                " --out " + at("six")).exit_code, 0);
  const auto num_files = [&] {
    const auto files = std::filesystem::recursive_directory_iterator(folder_.path());
    return std::distance(begin(files), end(files));
  };
  const auto before = num_files();
  const ProgramResult result = run("prepare --show-order 5 --seed 42 --seq-length 4 --num-samples 5 --out " + at("six"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(num_files(), before);  // no cache beside the data, which may be read-only or shared
  // Document order 0 1 5 2 4 3, samples in the order 3 1 2 0 4.
  const auto id_of = [&](const std::string& letter) {
    write_file_atomically(folder_ / "letter", letter);
    std::string id = run("tokenizer encode --no-special-tokens --tokenizer " + at("tokenizer") + " --input " +
                         at("letter")).out;
    id.erase(id.find('\n'));
    return id;
  };
  std::vector<std::string> got;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) got.push_back(line.substr(line.rfind('\t') + 1));
  ASSERT_EQ(got.size(), 6U);
  const std::string order = "cbfae";
  for (size_t k = 0; k < order.size(); ++k) {
    const std::string id = id_of(order.substr(k, 1));
    EXPECT_EQ(got[k + 1], id + " " + id + " " + id + " " + id) << k;
  }
}

}  // namespace
}  // namespace deltatrain::test
