// The program, killed at random moments of training and saving, goes on from its last checkpoint to
// the same result.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "formats/indexed_dataset.h"
#include "support/test_files.h"

namespace deltatrain::train {
namespace {

constexpr int kSteps = 400;
constexpr int kKills = 100;

class KillTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    formats::IndexedDatasetWriter writer((folder_ / "train").string(), formats::TokenType::kU16);
    std::vector<int32_t> document(500);
    for (int32_t d = 0; d < 10; ++d) {
      for (size_t i = 0; i < document.size(); ++i)
        document[i] = static_cast<int32_t>((7 * i + 3 * static_cast<size_t>(d)) % 31);
      writer.add_document(document);
    }
    writer.commit();
    std::ofstream(folder_ / "recipe.yaml") << R"(
model: {model_type: gated_deltanet, vocab_size: 31, hidden_size: 16, intermediate_size: 32,
  num_hidden_layers: 1, num_heads: 1, num_v_heads: 1, head_dim: 16, expand_v: 1}
data: {train: )" << (folder_ / "train").string()
                                           << R"(}
optimizer: {lr: 1e-3}
train: {train_iters: )" << kSteps << R"(, micro_batch_size: 1, global_batch_size: 2, seq_length: 16}
)";
  }

  std::string arguments(const std::string& out) const {
    return "train --recipe " + (folder_ / "recipe.yaml").string() + " --out " +
           (folder_ / out).string() +
           " --set checkpoint.save_interval=1 --set checkpoint.format=" + GetParam();
  }

  // The loss of each step, the last one told winning.
  std::vector<double> losses(const std::string& out) const {
    std::vector<double> result(kSteps, -1);
    std::ifstream file(folder_ / (out + "/metrics.jsonl"));
    std::string line;
    while (std::getline(file, line)) {
      const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (entry.is_object() && entry["kind"] == "step")
        result.at(entry["step"].get<size_t>() - 1) = entry["loss"].get<double>();
    }
    return result;
  }

  test::TemporaryFolder folder_;
};

TEST_P(KillTest, GoesOnFromTheLastCheckpointToTheSameResult) {
  ASSERT_EQ(test::run_program(arguments("whole")).exit_code, 0);
  std::mt19937_64 random(7);
  int kills = 0;
  bool finished = false;
  for (int round = 0; round < 10 * kKills && kills < kKills && !finished; ++round) {
    const bool started = checkpoint::tracked_step(folder_ / "killed/checkpoints").has_value();
    if (!started) std::filesystem::remove_all(folder_ / "killed");
    const double seconds = 0.02 + 1e-3 * static_cast<double>(random() % 400);
    const auto result =
        test::run_program(arguments("killed") + (started ? " --resume" : ""), seconds);
    finished = result.exit_code == 0;
    if (!finished) {
      ASSERT_EQ(result.exit_code, 137) << result.err;
      ++kills;
    }
  }
  if (!finished) {
    const auto result = test::run_program(arguments("killed") + " --resume");
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_GT(kills, 5);
  RecordProperty("kills", kills);
  EXPECT_EQ(losses("killed"), losses("whole"));
}

INSTANTIATE_TEST_SUITE_P(Formats, KillTest, ::testing::Values("native", "megatron"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace deltatrain::train
