#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/small_checkpoint.h"
#include "support/test_files.h"

namespace deltatrain::checkpoint {
namespace {

using test::SmallCheckpoint;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return error.what();
  }
  return "no error";
}

TEST(CheckpointTest, ReadsBackWhatWasSaved) {
  const TemporaryFolder run;
  const auto folder = run / "checkpoints";
  const SaveReport report = SmallCheckpoint(1024).save(folder);
  EXPECT_EQ(report.folder, folder / "iter_0001024");
  EXPECT_EQ(read_file(folder / "latest_checkpointed_iteration.txt"), "1024");
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(report.folder)) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(report.bytes, bytes);

  // The run's folder, the checkpoints folder and the iteration itself all lead to it.
  for (const auto& path : {run.path(), folder, report.folder}) {
    EXPECT_TRUE(is_native_checkpoint(path));
    EXPECT_EQ(SmallCheckpoint::check(path), 1024);
  }
  const CheckpointReader reader(folder);
  EXPECT_EQ(reader.folder(), report.folder);
  EXPECT_THAT(reader.companions(), ElementsAre("config.json"));
  const auto data = nlohmann::json::parse(reader.state().extra.at("data"));
  EXPECT_EQ(data, nlohmann::json({{"epoch", 3}, {"index", 1024}}));
  EXPECT_EQ(reader.state().extra.at("recipe_digest"), "\"abc\"");

  const SmallCheckpoint target(0);
  reader.read_all_model(target.model());
  reader.read_all_optimizer(target.optimizer());
  const SmallCheckpoint expected(1024);
  for (size_t i = 0; i < expected.optimizer().size(); ++i) {
    const Tensor& want = expected.optimizer()[i].tensor;
    EXPECT_EQ(std::memcmp(target.optimizer()[i].tensor.raw(), want.raw(),
                          static_cast<size_t>(want.num_bytes())),
              0);
  }
}

TEST(CheckpointTest, SplitsLargeFilesAndReadsThemBack) {
  const TemporaryFolder folder;
  SaveOptions options;
  options.max_file_bytes = 600;
  SmallCheckpoint(5).save(folder.path(), options);
  EXPECT_TRUE(
      std::filesystem::exists(folder / "iter_0000005/optimizer-00001-of-00002.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder / "iter_0000005/optimizer.safetensors.index.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "iter_0000005/model.safetensors"));
  EXPECT_EQ(SmallCheckpoint::check(folder.path()), 5);
}

TEST(CheckpointTest, SameStepAgainReplacesTheFolder) {
  const TemporaryFolder folder;
  SmallCheckpoint(7).save(folder.path());
  std::ofstream(folder / "iter_0000007/model.safetensors") << "broken";
  EXPECT_THROW(CheckpointReader(folder.path()), FormatError);
  SmallCheckpoint(7).save(folder.path());
  EXPECT_EQ(SmallCheckpoint::check(folder.path()), 7);
  EXPECT_FALSE(std::filesystem::exists(folder / "iter_0000007.tmp"));
}

TEST(CheckpointTest, StepsOfMoreThanSevenDigitsKeepTheirOrder) {
  const TemporaryFolder folder;
  SmallCheckpoint(12345678).save(folder.path());
  SmallCheckpoint(9).save(folder.path());
  std::filesystem::create_directory(folder / "iter_12");  // not how a step is written
  std::filesystem::create_directory(folder / "iter_0000001x");
  EXPECT_THAT(list_checkpoints(folder.path()), ElementsAre(9, 12345678));
  EXPECT_EQ(checkpoint_path("c", 12345678), "c/iter_12345678");
}

TEST(CheckpointTest, ReportsEveryDifferenceBeforeReading) {
  const TemporaryFolder folder;
  SmallCheckpoint(1).save(folder.path());
  const CheckpointReader reader(folder.path());
  float memory[16 * 8] = {};
  const std::vector<NamedTensor> other = {
      {"model.embeddings.weight", Tensor(memory, DType::kF32, {8, 16})},
      {"model.layers.0.attn.A_log", Tensor(memory, DType::kF32, {4})}};
  EXPECT_EQ(
      message_of([&] { reader.read_all_model(other); }),
      (folder / "iter_0000001").string() +
          ": expected the tensors of this run, got 1 missing (model.layers.0.attn.A_log), 1 extra "
          "(model.norm.weight), 1 mis-shaped (model.embeddings.weight: expected f32 [8, 16], got "
          "f32 [16, 8])");
  for (const float value : memory) ASSERT_EQ(value, 0.0F);
  EXPECT_EQ(
      message_of([&] { reader.read_model("model.norm.weight", Tensor(memory, DType::kF32, {8})); }),
      (folder / "iter_0000001/model.safetensors").string() +
          ": model.norm.weight: expected f32 [8], got bf16 [8]");
  EXPECT_THAT(message_of([&] { reader.model_tensor("nope"); }),
              HasSubstr("nope: expected this tensor, got none"));
}

TEST(CheckpointTest, RefusesNamesGivenTwiceAndStateThatIsNotJson) {
  const TemporaryFolder folder;
  const SmallCheckpoint small(1);
  std::vector<NamedTensor> twice = {small.model()[0], small.model()[0]};
  EXPECT_THROW(save_checkpoint(folder.path(), CheckpointState{}, twice, {}), FormatError);
  CheckpointState state;
  state.extra["data"] = "{";
  EXPECT_THAT(message_of([&] { save_checkpoint(folder.path(), state, small.model(), {}); }),
              HasSubstr("state.json: extra.data: expected JSON, got {"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(CheckpointTest, SaysWhatItLookedFor) {
  const TemporaryFolder folder;
  EXPECT_FALSE(is_native_checkpoint(folder.path()));
  EXPECT_THAT(message_of([&] { find_checkpoint(folder.path()); }),
              HasSubstr("expected a checkpoint: state.json, latest_checkpointed_iteration.txt or "
                        "checkpoints/, got none"));
  EXPECT_THAT(message_of([&] { find_checkpoint(folder / "nowhere"); }),
              HasSubstr("got no such folder"));
  const auto tracker = folder / "latest_checkpointed_iteration.txt";
  std::ofstream(tracker) << "12\n";
  EXPECT_EQ(message_of([&] { find_checkpoint(folder.path()); }),
            tracker.string() +
                ": expected iter_0000012 with state.json in it, as it says, got no such folder");
  for (const char* bad : {"", "release", "-3", "12 13", "99999999999999999999"}) {
    std::ofstream(tracker) << bad;
    EXPECT_THAT(message_of([&] { tracked_step(folder.path()); }),
                HasSubstr("expected a step, got \""));
  }
}

TEST(PruneCheckpointsTest, KeepsTheLastTheMultiplesAndTheTracked) {
  const TemporaryFolder folder;
  for (int64_t step = 10; step <= 80; step += 10) SmallCheckpoint(step).save(folder.path());
  std::filesystem::create_directory(folder / "iter_0000085.tmp");
  std::filesystem::create_directory(folder / "notes.tmp");
  std::ofstream(folder / "latest_checkpointed_iteration.txt") << "20";
  EXPECT_THAT(prune_checkpoints(folder.path(), 2, 30), ElementsAre(10, 40, 50));
  EXPECT_THAT(list_checkpoints(folder.path()), ElementsAre(20, 30, 60, 70, 80));
  EXPECT_FALSE(std::filesystem::exists(folder / "iter_0000085.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / "notes.tmp"));
  EXPECT_THAT(prune_checkpoints(folder.path(), 0, 0), ElementsAre());
  EXPECT_THAT(prune_checkpoints(folder.path(), 1, 0), ElementsAre(30, 60, 70));
}

TEST(PruneCheckpointsTest, RemovesNothingWithoutATracker) {
  const TemporaryFolder folder;
  SmallCheckpoint(1).save(folder.path());
  SmallCheckpoint(2).save(folder.path());
  std::filesystem::remove(folder / "latest_checkpointed_iteration.txt");
  EXPECT_THAT(prune_checkpoints(folder.path(), 1, 0), ElementsAre());
  EXPECT_THAT(list_checkpoints(folder.path()), ElementsAre(1, 2));
}

TEST(NewestWholeCheckpointTest, PassesOverBrokenOnesAndSaysWhy) {
  const TemporaryFolder run;
  const auto folder = run / "checkpoints";
  for (int64_t step = 1; step <= 3; ++step) SmallCheckpoint(step).save(folder);
  std::filesystem::resize_file(folder / "iter_0000003/model.safetensors", 100);
  std::filesystem::remove(folder / "iter_0000002/config.json");
  std::vector<std::string> problems;
  EXPECT_EQ(newest_whole_checkpoint(run.path(), &problems), folder / "iter_0000001");
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_THAT(problems[0], HasSubstr("iter_0000003/model.safetensors: expected"));
  EXPECT_THAT(problems[1],
              HasSubstr("iter_0000002/config.json: expected a file, as state.json says, got none"));
  std::filesystem::remove_all(folder / "iter_0000001");
  EXPECT_EQ(newest_whole_checkpoint(folder, nullptr), std::nullopt);
}

}  // namespace
}  // namespace deltatrain::checkpoint
