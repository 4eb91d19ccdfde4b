// A save that is killed, or whose disk is full,
// at any moment leaves the tracker naming a whole checkpoint.

#include <gmock/gmock.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/small_checkpoint.h"
#include "support/crashes.h"
#include "support/test_files.h"

namespace deltatrain::checkpoint {
namespace {

using test::SmallCheckpoint;
using test::TemporaryFolder;
using ::testing::HasSubstr;

TEST(CheckpointCrashTest, KilledAtAHundredMomentsTheTrackerNamesAWholeCheckpoint) {
  const TemporaryFolder run;
  const auto folder = run / "checkpoints";
  SmallCheckpoint(1).save(folder);
  int64_t step = 1;
  int64_t leftovers = 0;
  test::Kills kills;
  kills.seed = 20240607;
  kills.once = [&] { SmallCheckpoint(1).save(folder); };
  // Step after step, and each step twice.
  kills.forever = [&] {
    for (int64_t next = step + 1;; ++next) {
      SmallCheckpoint(next).save(folder);
      SmallCheckpoint(next).save(folder);
      prune_checkpoints(folder, 2, 0);
    }
  };
  kills.check = [&] {
    const int64_t found = SmallCheckpoint::check(run.path());
    ASSERT_EQ(found, tracked_step(folder).value());
    ASSERT_GE(found, step);
    step = found;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      leftovers += entry.path().extension() == ".tmp" ? 1 : 0;
    }
    // Folders that the tracker doesn't name are whole too: they were renamed after their last byte.
    for (const int64_t other : list_checkpoints(folder)) {
      ASSERT_EQ(SmallCheckpoint::check(checkpoint_path(folder, other)), other);
    }
  };
  ASSERT_EQ(test::kill_at_random_moments(kills), "");
  EXPECT_GT(leftovers, 0) << "the kills did not hit saves in progress";
  prune_checkpoints(folder, 1, 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_NE(entry.path().extension(), ".tmp");
  }
}

TEST(CheckpointCrashTest, FullDiskAtAnyFileLeavesTheOldCheckpoint) {
  for (const char* full_at : {"model.safetensors", "optimizer.safetensors", "config.json",
                              "state.json", "latest_checkpointed_iteration.txt"}) {
    for (const rlim_t bytes : {rlim_t{0}, rlim_t{20}, rlim_t{700}}) {
      const TemporaryFolder run;
      SmallCheckpoint(1).save(run.path());
      const test::FullDisk disk;
      bool failed = false;
      SaveOptions options;
      options.before_file = [&](const std::filesystem::path& file) {
        if (file.filename() == full_at) disk.limit(bytes);
      };
      try {
        SmallCheckpoint(2).save(run.path(), options);
      } catch (const FileError& error) {
        failed = true;
        EXPECT_EQ(error.code(), ExitCode::kEnvironment);
        EXPECT_THAT(error.what(), HasSubstr("cannot be written"));
      }
      disk.allow_again();
      // Only the tracker, which comes last, fits into a limit.
      const std::string name = full_at;
      const bool fits = (name == "latest_checkpointed_iteration.txt" && bytes >= 20);
      EXPECT_EQ(failed, !fits) << full_at << " limited to " << bytes;
      EXPECT_EQ(SmallCheckpoint::check(run.path()), failed ? 1 : 2);
      EXPECT_FALSE(std::filesystem::exists(run / "iter_0000002.tmp"));
      EXPECT_FALSE(std::filesystem::exists(
          run / ("latest_checkpointed_iteration.txt.tmp-" + std::to_string(::getpid()))));
      SmallCheckpoint(2).save(run.path());
      EXPECT_EQ(SmallCheckpoint::check(run.path()), 2);
    }
  }
}

TEST(CheckpointCrashTest, AnErrorOfTheCallerEndsTheSaveCleanly) {
  const TemporaryFolder run;
  SmallCheckpoint(1).save(run.path());
  SaveOptions options;
  options.before_file = [](const std::filesystem::path& file) {
    if (file.filename() == "state.json") throw NumericError("stop");
  };
  EXPECT_THROW(SmallCheckpoint(2).save(run.path(), options), NumericError);
  EXPECT_EQ(SmallCheckpoint::check(run.path()), 1);
  EXPECT_FALSE(std::filesystem::exists(run / "iter_0000002.tmp"));
}

TEST(CheckpointCrashTest, RefusesToStartOnADiskThatIsTooSmall) {
  const TemporaryFolder run;
  CheckpointState state;
  std::vector<NamedTensor> model;
  // 2^50 bytes that are never touched: the check comes first.
  char byte = 0;
  model.push_back({"w", Tensor(&byte, DType::kU8, {int64_t{1} << 50})});
  try {
    save_checkpoint(run.path(), state, model, {});
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_THAT(error.what(),
                HasSubstr("disk: expected 1125899906842624 bytes free for a checkpoint, got "));
  }
  EXPECT_TRUE(std::filesystem::is_empty(run.path()));
}

}  // namespace
}  // namespace deltatrain::checkpoint
