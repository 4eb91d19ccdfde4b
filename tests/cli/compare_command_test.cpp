// `compare` and `plot` of runs through the program: files, exit codes, one line for what cannot be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/files.h"
#include "support/test_files.h"

namespace deltatrain::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CompareCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    // Losses 8 and 4 of four steps each; the trainer's are the sum over two processes.
    write("a.json", R"({"log_history": [{"step": 4, "loss": 16.0, "learning_rate": 1e-4},
                                        {"step": 8, "loss": 8.0, "learning_rate": 1e-4}]})");
    std::string log;
    for (const auto& [iteration, loss] : {std::pair{2, 9.0}, {4, 7.0}, {6, 4.5}, {8, 4.0}})
      log += "iteration " + std::to_string(iteration) +
             "/ 8 | elapsed time per iteration (ms): 500.0 | lm loss: " + std::to_string(loss) +
             " | number of nan iterations:   0 |\n";
    write("b.log", log);
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string failure(const std::string& arguments, int exit_code) {
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << arguments << "\n" << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }
  TemporaryFolder folder_;
};

TEST_F(CompareCommandTest, WritesEveryKindOfFile) {
  const std::string inputs = at("a.json") + " " + at("b.log") + " --divisor 2";
  std::string command = "compare " + inputs + " --range 5-8";
  for (const char* name : {"c.md", "c.csv", "c.json", "c.svg", "c.html"})
    command += " --out " + at(name);
  const ProgramResult result = run_program(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, read_file(at("c.md")));
  // Both over steps 1 to 4: (9 + 7) / 2 is 8; over 5 to 8: 4.25 against 4.
  EXPECT_THAT(
      result.out,
      HasSubstr("| 4 | 8.0000 | 7.0000 | \u221212.50 | 1-4 | 8.0000 | 8.0000 | 0.00 | matched |"));
  EXPECT_THAT(result.out, HasSubstr("| mean loss, steps 5-8 | 4.0000 | 4.2500 | +6.25 % |"));
  EXPECT_THAT(result.out, HasSubstr("A: a (trainer_state.json, losses / 2)"));
  EXPECT_THAT(result.out, HasSubstr("| b | 500.0 |"));
  EXPECT_THAT(read_file(at("c.csv")), HasSubstr("a,b,8,4,4,0,5,8,4,4.25,6.25,"));
  const auto json = nlohmann::json::parse(read_file(at("c.json")));
  EXPECT_EQ(json.at("pairs")[0].at("mean").at("percent"), 6.25);
  EXPECT_EQ(json.at("runs")[0].at("divisor"), 2);
  EXPECT_EQ(json.at("limits").at("matched_percent"), 0.5);
  EXPECT_THAT(read_file(at("c.svg")), StartsWith("<svg"));
  EXPECT_THAT(read_file(at("c.html")), StartsWith("<!DOCTYPE html>"));
  EXPECT_EQ(nlohmann::json::parse(run_program("compare " + inputs + " --range 5-8 --json").out),
            json);

  const ProgramResult plot =
      run_program("plot " + inputs + " --out " + at("p.svg") + " --out " + at("p.html"));
  ASSERT_EQ(plot.exit_code, 0) << plot.err;
  EXPECT_EQ(read_file(at("p.svg")), read_file(at("c.svg")));
}

TEST_F(CompareCommandTest, DifferencesPastTheLimitEndWithExitCode4) {
  const std::string inputs =
      "compare " + at("a.json") + " " + at("b.log") + " --divisor 2 --max-percent ";
  EXPECT_EQ(run_program(inputs + "6.3").exit_code, 0);
  EXPECT_THAT(
      failure(inputs + "6.2", 4),
      HasSubstr("compare: a and b: steps 5 to 8: expected at most 6.2 % apart, got +6.250 %"));
  EXPECT_THAT(failure(inputs + "9 --after 8", 4),
              HasSubstr("expected windows after step 8, got none"));
}

TEST_F(CompareCommandTest, WhatCannotBeIsSaidInOneLine) {
  const std::string pair = at("a.json") + " " + at("b.log");
  EXPECT_THAT(failure("compare " + pair + " --divisor 0", 2),
              HasSubstr("--divisor: expected a number > 0, got 0"));
  EXPECT_THAT(failure("compare " + pair + " --divisor 1,2,3", 2),
              HasSubstr("or one for each of 2 inputs, got 3 numbers"));
  for (const char* range : {"x", "5", "9-8", "0-8", "5-", "5-8x"})
    EXPECT_THAT(failure("compare " + pair + " --range " + range, 2),
                HasSubstr("--range: expected FIRST-LAST"));
  EXPECT_THAT(failure("compare " + pair + " --out x.pdf", 2),
              HasSubstr("--out: expected a name that ends in .md,"));
  EXPECT_THAT(failure("plot " + pair + " --out x.csv", 2),
              HasSubstr("--out: expected a name that ends in .svg,"));
  EXPECT_THAT(failure("compare " + pair + " --max-sigma 3", 2),
              HasSubstr("--max-sigma: expected results of evaluations"));
  EXPECT_THAT(failure("compare " + at("a.json") + " " + at("none"), 2),
              HasSubstr("none: cannot be opened"));
  write("results_x.json", R"({"results": {"arc_easy": {"acc,none": 0.5}}})");
  EXPECT_THAT(failure("compare " + at("a.json") + " " + at("results_x.json"), 2),
              HasSubstr("expected inputs of one kind"));
  EXPECT_THAT(
      failure("compare " + at("results_x.json") + " " + at("results_x.json") + " --range 1-2", 2),
      HasSubstr("--range: expected logs of runs"));
  EXPECT_THAT(failure("compare " + pair + " --out /proc/x.md", 5), HasSubstr("/proc/x.md"));
}

TEST_F(CompareCommandTest, TracesAreMergedByName) {
  std::filesystem::create_directories(folder_ / "run/profile");
  write("run/profile/rank0.trace.json", R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 0}]})");
  write("run/profile/rank1.trace.json", R"({"traceEvents": [{"ph": "X", "name": "b", "pid": 0}]})");
  const std::string command = "plot " + at("run") + " --out " + at("run/profile/all.trace.json");
  ASSERT_EQ(run_program(command).exit_code, 0);
  const std::string merged = read_file(at("run/profile/all.trace.json"));
  EXPECT_EQ(nlohmann::json::parse(merged).at("traceEvents").size(), 6U);
  // Again: the merged file is not one of its own inputs.
  ASSERT_EQ(run_program(command).exit_code, 0);
  EXPECT_EQ(read_file(at("run/profile/all.trace.json")), merged);
}

}  // namespace
}  // namespace deltatrain::test
