// What holds for every command: complete help, one line on stderr, results that are written or
// reported as lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string>

#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::test {
namespace {

using ::testing::HasSubstr;

const char* const kCommands[] = {"train",
                                 "convert",
                                 "verify",
                                 "dump",
                                 "diff",
                                 "generate",
                                 "serve",
                                 "eval",
                                 "compare",
                                 "plot",
                                 "bench",
                                 "selftest",
                                 "init",
                                 "prepare",
                                 "recipe show",
                                 "recipe check",
                                 "recipe plan",
                                 "recipe import",
                                 "recipe keys",
                                 "tokenizer train",
                                 "tokenizer encode",
                                 "tokenizer decode",
                                 "tokenizer inspect",
                                 "tokenizer bench"};

TEST(HelpTest, EveryCommandShowsAnExampleWithRecipesThatAreThere) {
  const std::filesystem::path root = golden_path("x").parent_path().parent_path().parent_path();
  const std::regex recipe("recipes/[a-z]+/[a-z0-9_]+\\.yaml");
  for (const std::string command : kCommands) {
    const ProgramResult result = run_program(command + " --help");
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_THAT(result.out, HasSubstr("Example: ")) << command;
    for (auto it = std::sregex_iterator(result.out.begin(), result.out.end(), recipe);
         it != std::sregex_iterator(); ++it) {
      EXPECT_TRUE(std::filesystem::exists(root / it->str())) << command << ": " << it->str();
    }
  }
}

// Runs what must fail and gives its line on stderr, without the program's name.
std::string only_line(const std::string& arguments, int exit_code) {
  const ProgramResult result = run_program(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << arguments << "\n" << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  const std::string name = "deltatrain: ";
  EXPECT_EQ(result.err.substr(0, name.size()), name);
  return result.err.substr(std::min(result.err.size(), name.size()));
}

TEST(MainTest, AnUnknownCommandIsNamedWithTheNearestOne) {
  EXPECT_EQ(only_line("trian --out x", 2), "trian: unknown command; did you mean train?\n");
  EXPECT_EQ(only_line("frobnicate", 2), "frobnicate: unknown command (see --help)\n");
}

TEST(MainTest, LineEndsInNamesDoNotBreakTheMessage) {
  EXPECT_THAT(only_line("train --recipe \"$(printf 'a\\nb')\" --out x", 2), HasSubstr("a\\nb: "));
}

TEST(MainTest, NamesThatNoFileCanHaveAreBadInput) {
  const std::string name(300, 'n');
  EXPECT_THAT(only_line("tokenizer inspect --tokenizer " + name, 2),
              HasSubstr("File name too long"));
}

TEST(MainTest, NumbersOutsideTheirRangeAreRefused) {
  EXPECT_EQ(only_line("generate --model x --seed -1", 2),
            "--seed: expected a whole number >= 0, got \"-1\" (see --help)\n");
  EXPECT_EQ(only_line("generate --model x --max-new-tokens 9223372036854775808", 2),
            "--max-new-tokens: expected a whole number from 0 to 1073741824, got "
            "\"9223372036854775808\" (see --help)\n");
  EXPECT_EQ(only_line("selftest --threads -1", 2),
            "--threads: expected a whole number from 0 to 4096, got \"-1\" (see --help)\n");
  EXPECT_EQ(only_line("diff a b --tolerance nan", 2),
            "--tolerance: expected a number >= 0, got nan\n");
}

TEST(MainTest, AFullDiskUnderStandardOutputIsAnError) {
  const TemporaryFolder folder;
  const std::string err = (folder / "err").string();
  for (const char* command : {"recipe keys", "recipe show recipes/gdn/gdn_300m.yaml"}) {
    // Its own redirections; those of run_program become a comment.
    const ProgramResult result =
        run_program(std::string(command) + " >/dev/full 2>" + err + "; exit $? #");
    EXPECT_EQ(result.exit_code, 5) << command;
    EXPECT_EQ(read_file(err),
              "deltatrain: standard output: cannot be written: No space left on device\n");
  }
}

}  // namespace
}  // namespace deltatrain::test
