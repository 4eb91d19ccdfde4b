// A Megatron checkpoint whose save is killed, or whose disk is full, at any moment leaves the
// tracker naming a whole one.
#include <gmock/gmock.h>

#include "base/error.h"
#include "convert/megatron_source.h"
#include "convert/megatron_writer.h"
#include "support/crashes.h"
#include "support/test_files.h"

namespace deltatrain::convert {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

// The weights of a golden model at a step of the test's own.
class AtStep : public WeightSource {
 public:
  AtStep(const WeightSource& source, int64_t step) : source_(source), step_(step) {}
  std::string describe() const override { return source_.describe(); }
  int64_t step() const override { return step_; }
  const std::filesystem::path& folder() const override { return source_.folder(); }
  const ModelConfig& config() const override { return source_.config(); }
  const std::vector<formats::TensorSpec>& tensors() const override { return source_.tensors(); }
  void read(const std::string& name, int64_t begin, int64_t count, void* out) const override {
    source_.read(name, begin, count, out);
  }
  void release(const std::string&) const override {}

 private:
  const WeightSource& source_;
  int64_t step_;
};

class MegatronCrashTest : public ::testing::Test {
 protected:
  void save(int64_t step, const std::filesystem::path& folder,
            checkpoint::SaveOptions options = {}) const {
    options.companions = {{"recipe.yaml", "model: {}\n"}};
    save_megatron_checkpoint(AtStep(*source_, step), {}, folder, options,
                             [](const std::string&) {});
  }

  // The step of the checkpoint that the tracker names, after every byte of it has been checked.
  static int64_t check(const std::filesystem::path& folder) {
    const auto file = find_megatron_checkpoint(folder);
    if (!file) throw FormatError("no checkpoint");
    verify_megatron_checksums(*file);
    OpenOptions options;
    options.config = open_weights(test::golden_path("tiny_gdn"))->config();
    const auto source = open_megatron(folder, options);
    EXPECT_TRUE(source->differences().none());
    return source->step();
  }

  std::unique_ptr<WeightSource> source_ = open_weights(test::golden_path("tiny_gdn"));
};

TEST_F(MegatronCrashTest, KilledAtAHundredMomentsTheTrackerNamesAWholeCheckpoint) {
  const TemporaryFolder folder;
  save(1, folder.path());
  int64_t step = 1;
  int64_t leftovers = 0;
  test::Kills kills;
  kills.seed = 20250611;
  kills.once = [&] { save(1, folder.path()); };
  kills.forever = [&] {
    for (int64_t next = step + 1;; ++next) {
      save(next, folder.path());
      save(next, folder.path());
      checkpoint::prune_checkpoints(folder.path(), 2, 0);
    }
  };
  kills.check = [&] {
    const int64_t found = check(folder.path());
    ASSERT_EQ(found, checkpoint::tracked_step(folder.path()).value());
    ASSERT_GE(found, step);
    step = found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      leftovers += entry.path().extension() == ".tmp" ? 1 : 0;
    for (const int64_t other : list_megatron_checkpoints(folder.path()))
      ASSERT_EQ(check(checkpoint::checkpoint_path(folder.path(), other)), other);
  };
  ASSERT_EQ(test::kill_at_random_moments(kills), "");
  EXPECT_GT(leftovers, 0) << "the kills did not hit saves in progress";
}

TEST_F(MegatronCrashTest, FullDiskLeavesTheOldCheckpoint) {
  // The first byte of the file, its middle, the recipe beside it, the tracker.
  const std::pair<const char*, rlim_t> cases[] = {{"model_optim_rng.pt", 0},
                                                  {"model_optim_rng.pt", 100'000},
                                                  {"recipe.yaml", 5},
                                                  {"latest_checkpointed_iteration.txt", 0}};
  for (const auto& [full_at, bytes] : cases) {
    const TemporaryFolder folder;
    save(1, folder.path());
    checkpoint::SaveOptions options;
    const rlim_t limit = bytes;
    const test::FullDisk disk;
    options.before_file = [&, name = full_at](const std::filesystem::path& file) {
      if (file.filename() == name) disk.limit(limit);
    };
    std::string message;
    try {
      save(2, folder.path(), options);
    } catch (const FileError& error) {
      EXPECT_EQ(error.code(), ExitCode::kEnvironment);
      message = error.what();
    }
    disk.allow_again();
    EXPECT_THAT(message, HasSubstr("cannot be written")) << full_at;
    EXPECT_EQ(check(folder.path()), 1) << full_at;
    EXPECT_FALSE(std::filesystem::exists(folder / "iter_0000002.tmp")) << full_at;
    save(2, folder.path());
    EXPECT_EQ(check(folder.path()), 2) << full_at;
  }
}

}  // namespace
}  // namespace deltatrain::convert
