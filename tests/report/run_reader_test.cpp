#include "report/run_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "report/comparison_text.h"
#include "support/test_files.h"

namespace deltatrain::report {
namespace {

using ::testing::HasSubstr;

class RunReaderTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::string failure(const std::string& path) const {
    try {
      read_run(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      return error.what();
    }
    return "";
  }
  test::TemporaryFolder folder_;
};

const char* const kMetrics =
    "{\"kind\":\"run\",\"time\":100.0,\"train_iters\":9}\n"
    "{\"kind\":\"step\",\"step\":1,\"loss\":5.0,\"grad_norm\":2.0,\"lr\":0.0,\"seconds\":0.5,"
    "\"tokens_per_second\":10,"
    "\"parts\":{\"data\":0.1,\"forward\":0.4}}\n"
    "{\"kind\":\"step\",\"step\":2,\"loss\":4.0,\"grad_norm\":1.0,\"lr\":0.1,\"seconds\":0.25,"
    "\"tokens_per_second\":20}\n"
    "{\"kind\":\"step\",\"step\":3,\"loss\":null,\"grad_norm\":null,\"lr\":0.2,\"seconds\":0.25,"
    "\"skipped\":true}\n"
    "{\"kind\":\"validation\",\"step\":3,\"loss\":4.5,\"seconds\":0.125}\n"
    "{\"kind\":\"resources\",\"step\":3,\"host_bytes\":1024}\n"
    "{\"kind\":\"sample\",\"step\":3,\"prompt\":\"The\",\"text\":\" end\"}\n"
    "{\"kind\":\"step\",\"step\":4,\"loss\":3.0,\"lr\":0.2,\"seconds\":0.25}\n"
    "{\"kind\":\"end\",\"time\":110.0,\"step\":4,\"verdict\":\"stopped by a signal\"}\n"
    "{\"kind\":\"run\",\"time\":200.0,\"train_iters\":9}\n"
    "{\"kind\":\"resume\",\"step\":3}\n"
    "{\"kind\":\"step\",\"step\":4,\"loss\":3.5,\"lr\":0.2,\"seconds\":0.25}\n"
    "{\"kind\":\"end\",\"time\":205.0,\"step\":4,\"verdict\":\"done\"}\n";

TEST_F(RunReaderTest, ReadsMetricsOfAResumedRun) {
  write("a/metrics.jsonl", kMetrics);
  const RunRecord run = read_run((folder_ / "a").string());
  EXPECT_EQ(run.name, "a");
  ASSERT_EQ(run.losses.size(), 4U);
  EXPECT_EQ(run.losses[2].counted, 0);
  EXPECT_EQ(run.losses[3].loss, 3.5);
  EXPECT_EQ(run.wall_seconds, 15);
  EXPECT_EQ(run.total_steps, 9);
  EXPECT_EQ(run.warmup_steps, 2);  // step 3 was the first at the largest rate
  EXPECT_EQ(run.part_seconds.at("forward")[0].value, 0.4);
  EXPECT_EQ(run.part_seconds.at("validation")[0].value, 0.125);
  EXPECT_EQ(run.host_bytes[0].value, 1024);
  ASSERT_EQ(run.samples.size(), 1U);
  EXPECT_EQ(run.samples[0].text, " end");
  ASSERT_EQ(run.events.size(), 3U);
  EXPECT_EQ(run.events[2].kind, RunEventKind::kResume);
  EXPECT_EQ(run.events[2].step, 4);
}

// Every prefix of a file that a process is writing or was killed over.
TEST_F(RunReaderTest, AFileCutOffAnywhereGivesWhatIsWhole) {
  const std::string whole = kMetrics;
  const size_t first_line = whole.find('\n') + 1;
  for (size_t size = first_line; size < whole.size(); size += 3) {
    const std::string text = whole.substr(0, size);
    const RunRecord run = read_run(write("cut/metrics.jsonl", text));
    const bool ends_whole = text.back() == '\n' || text.back() == '}';
    // A brace may also end a part of a line.
    if (text.back() == '\n') {
      EXPECT_EQ(run.ignored_lines, 0) << size;
    } else if (!ends_whole) {
      EXPECT_EQ(run.ignored_lines, 1) << size;
    }
  }
}

TEST_F(RunReaderTest, TellsFormatsByWhatIsInThem) {
  const std::string line = "iteration 1/ 9 | lm loss: 5.0E+00 | number of nan iterations: 0 |\n";
  EXPECT_EQ(read_run(write("m.txt", line)).format, RunFormat::kMegatron);
  EXPECT_EQ(read_run(write("m.json", "{not JSON}\n" + line)).format, RunFormat::kMegatron);
  EXPECT_EQ(read_run(write("s.txt", "{\"log_history\": [{\"step\": 1, \"loss\": 5}]}")).format,
            RunFormat::kTrainerState);
  EXPECT_EQ(read_run(write("l.txt", "{\"current_steps\": 1, \"loss\": 5}\n")).format,
            RunFormat::kTrainerLog);
  EXPECT_EQ(read_run(write("c.txt", "{'loss': 5.0, 'epoch': 0.1}\n")).format,
            RunFormat::kTrainerConsole);
  // Of a folder of checkpoints the last, by number.
  write("hf/checkpoint-9/trainer_state.json", "{\"log_history\": [{\"step\": 1, \"loss\": 9}]}");
  write("hf/checkpoint-10/trainer_state.json", "{\"log_history\": [{\"step\": 1, \"loss\": 10}]}");
  write("hf/checkpoint-x/trainer_state.json", "{}");
  EXPECT_EQ(read_run((folder_ / "hf").string()).losses[0].loss, 10);
}

TEST_F(RunReaderTest, OneDivisorIsForTheTrainersAloneUnlessItIsGivenForTheInput) {
  const std::string ours = write("a/metrics.jsonl", kMetrics);
  const std::string state = write("s.json", "{\"log_history\": [{\"step\": 1, \"loss\": 40}]}");
  EXPECT_EQ(read_run(ours, {.trainer_divisor = 8}).losses[0].loss, 5);
  EXPECT_EQ(read_run(state, {.trainer_divisor = 8}).losses[0].loss, 5);
  EXPECT_EQ(read_run(ours, {.divisor = 2}).losses[0].loss, 2.5);
  const RunRecord run = read_run(state);
  EXPECT_EQ(run.losses[0].loss, 40);
  ASSERT_EQ(run.notes.size(), 1U);
  EXPECT_THAT(run.notes[0], HasSubstr("divisor 1"));
}

TEST_F(RunReaderTest, WhatIsNoLogIsRefusedByName) {
  EXPECT_THAT(failure((folder_ / "missing").string()), HasSubstr("missing: cannot be opened"));
  EXPECT_THAT(failure(write("empty", "")), HasSubstr("got an empty file"));
  EXPECT_THAT(failure(write("text", "hello\n")),
              HasSubstr("text: log of a run: expected metrics.jsonl, Megatron's lines"));
  EXPECT_THAT(failure(write("model.json", "{\"hidden_size\": 3}")),
              HasSubstr("got something else"));
  std::filesystem::create_directories(folder_ / "folder");
  EXPECT_THAT(failure((folder_ / "folder").string()), HasSubstr("folder: expected metrics.jsonl"));
  EXPECT_THAT(failure(write("k", "{\"kind\":\"step\",\"step\":1,\"loss\":1}\n{\"no\":1}\n")),
              HasSubstr("k:2: kind: expected a text"));
  EXPECT_THAT(failure(write("n", "{\"kind\":\"step\",\"step\":-1,\"loss\":1}\n")),
              HasSubstr("n:1: step: expected a whole number"));
  EXPECT_THAT(failure(write("l", "{\"kind\":\"step\",\"step\":1}\n")),
              HasSubstr("l:1: loss: expected a number or null"));
}

TEST_F(RunReaderTest, ComparisonsOfRunsWithoutACommonStepAreRefused) {
  const RunRecord a = read_run(
      write("a.txt", "iteration 1/ 9 | lm loss: 5.0 |\niteration 2/ 9 | lm loss: 5.0 |\n"));
  const RunRecord b = read_run(
      write("b.txt", "iteration 100/ 900 | lm loss: 5.0 |\niteration 200/ 900 | lm loss: 5.0 |\n"));
  try {
    compare_runs(a, b, {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("expected windows of steps that both runs logged, got of every step up "
                          "to step 2, and means over 100 steps up to step 200"));
  }
}

TEST_F(RunReaderTest, NamesOfFilesDoNotBreakTables) {
  const std::string line = "iteration 1/ 9 | lm loss: 5.0 |\niteration 2/ 9 | lm loss: 5.0 |\n";
  const RunRecord a = read_run(write("a|b\nc,\"d\xff.txt", line));
  const PairComparison pair = compare_runs(a, a, {});
  const std::vector<PairComparison> pairs = {pair};
  const std::string markdown = comparison_markdown(pairs, {});
  EXPECT_THAT(markdown, HasSubstr("A: a\\|b c,\"d"));
  EXPECT_EQ(markdown.find("a|b"), std::string::npos);
  EXPECT_THAT(comparison_csv(pairs),
              HasSubstr("\n\"a|b\nc,\"\"d\xff\",\"a|b\nc,\"\"d\xff\",1,5,5,0,1,1,5,5,0,"));
  EXPECT_THAT(comparison_json(pairs, {}), HasSubstr("c,\\\"d\uFFFD"));
}

}  // namespace
}  // namespace deltatrain::report
