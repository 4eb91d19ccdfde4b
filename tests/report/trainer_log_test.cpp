#include "report/trainer_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace deltatrain::report {
namespace {

TEST(TrainerLogTest, ReadsTrainerState) {
  const RunRecord run =
      read_trainer_state("trainer_state.json", R"({"best_metric": null, "max_steps": 4768,
    "log_history": [
      {"epoch": 0.01, "grad_norm": 9.5, "learning_rate": 1e-06, "loss": 95.72, "step": 1},
      {"epoch": 0.02, "grad_norm": Infinity, "learning_rate": 2e-04, "loss": NaN, "step": 32},
      {"epoch": 0.03, "learning_rate": 1e-04, "loss": "64.0", "step": 64},
      {"epoch": 0.03, "eval_loss": 7.5, "step": 64},
      {"epoch": 1.0, "step": 64, "train_loss": 9.0, "train_runtime": 128.0}]})",
                         8)
          .value();
  ASSERT_EQ(run.losses.size(), 3U);
  EXPECT_EQ(run.losses[0].begin, 0);
  EXPECT_EQ(run.losses[0].loss, 95.72 / 8);
  EXPECT_EQ(run.losses[1].begin, 1);
  EXPECT_EQ(run.losses[1].end, 32);
  EXPECT_TRUE(std::isnan(run.losses[1].loss));
  EXPECT_EQ(run.losses[2].loss, 8);
  EXPECT_EQ(run.losses[2].counted, 32);
  EXPECT_EQ(run.total_steps, 4768);
  EXPECT_EQ(run.wall_seconds, 128);
  ASSERT_EQ(run.step_seconds.size(), 1U);
  EXPECT_EQ(run.step_seconds[0].value, 2);
  EXPECT_EQ(run.warmup_steps, 32);  // the rate printed at 32 is the one of step 33
  ASSERT_EQ(run.validation.size(), 1U);
  EXPECT_EQ(run.validation[0].value, 7.5);
  ASSERT_EQ(run.gradient_norm.size(), 1U);
}

TEST(TrainerLogTest, ReadsTrainerLogLines) {
  const RunRecord run =
      read_trainer_log(
          "trainer_log.jsonl",
          "{\"current_steps\": 10, \"total_steps\": 100, \"loss\": 80.0, \"learning_rate\": 1e-4, "
          "\"elapsed_time\": \"0:00:20\"}\n"
          "{\"current_steps\": 20, \"loss\": 72.0, \"learning_rate\": 2e-4, \"elapsed_time\": "
          "\"1 day, 0:00:20\"}\n"
          "{\"current_steps\": 30, \"lo",
          8)
          .value();
  ASSERT_EQ(run.losses.size(), 2U);
  EXPECT_EQ(run.losses[1].begin, 10);
  EXPECT_EQ(run.losses[1].loss, 9);
  EXPECT_EQ(run.ignored_lines, 1);
  EXPECT_EQ(run.total_steps, 100);
  EXPECT_EQ(run.wall_seconds, 86420);
  EXPECT_EQ(run.step_seconds[0].value, 2);
  EXPECT_EQ(run.step_seconds[1].value, 8640);
}

TEST(TrainerLogTest, ReadsWhatTheTrainerPrints) {
  const RunRecord run =
      read_trainer_console(
          "x.log",
          "  0%|          | 0/4768 [00:00<?, ?it/s]\r  1%|1  | 32/4768 [00:45<1:51, 1.4s/it]"
          "{'loss': 95.7232, 'grad_norm': 9.1, 'learning_rate': 3.2e-05, 'epoch': 0.01}\n"
          "{'loss': nan, 'grad_norm': nan, 'learning_rate': 6.4e-05, 'epoch': 0.01}\n"
          "{'eval_loss': 7.25, 'eval_runtime': 3.0, 'epoch': 0.01}\n"
          "{'loss': '64.0', 'grad_norm': '3.5', 'learning_rate': '9.6e-05', 'epoch': '0.02'}\n"
          "{'train_runtime': 192.0, 'train_loss': 9.5, 'epoch': 1.0}\n",
          8, 32)
          .value();
  ASSERT_EQ(run.losses.size(), 3U);
  EXPECT_EQ(run.losses[0].end, 32);
  EXPECT_EQ(run.losses[0].loss, 95.7232 / 8);
  EXPECT_TRUE(std::isnan(run.losses[1].loss));
  EXPECT_EQ(run.losses[2].begin, 64);
  EXPECT_EQ(run.losses[2].loss, 8);
  EXPECT_EQ(run.validation[0].step, 64);
  EXPECT_EQ(run.wall_seconds, 192);
  EXPECT_EQ(run.step_seconds[0].value, 2);
  EXPECT_EQ(run.notes[0], "steps counted as 32 per line: the log does not name them");
}

TEST(TrainerLogTest, OtherTextsAreOfAnotherKind) {
  for (const char* const text : {"", "{}", "[1]", "{\"log_history\": 3}", "no JSON", "{'loss'"}) {
    EXPECT_FALSE(read_trainer_state("x", text, 1).has_value()) << text;
    EXPECT_FALSE(read_trainer_log("x", text, 1).has_value()) << text;
    EXPECT_FALSE(read_trainer_console("x", text, 1, 1).has_value()) << text;
  }
}

TEST(TrainerLogTest, ARunThatWentBackReplacesWhatItRepeats) {
  const RunRecord run =
      read_trainer_state("x", R"({"log_history": [{"loss": 9, "step": 10}, {"loss": 8, "step": 20},
    {"loss": 7, "step": 30}, {"loss": 7.5, "step": 20}, {"loss": 6.5, "step": 30}]})",
                         1)
          .value();
  ASSERT_EQ(run.losses.size(), 3U);
  EXPECT_EQ(run.losses[1].begin, 10);
  EXPECT_EQ(run.losses[1].loss, 7.5);
  EXPECT_EQ(run.losses[2].loss, 6.5);
}

}  // namespace
}  // namespace deltatrain::report
