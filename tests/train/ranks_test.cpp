// The program as several ranks of one run: the same result as one, and a known end when one is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/checkpoint.h"
#include "formats/indexed_dataset.h"
#include "support/program_ranks.h"
#include "support/test_files.h"

namespace deltatrain::train {
namespace {

using test::ProgramRanks;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kSteps = 20;

class RanksTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* const name : {"train", "valid", "other"}) {
      formats::IndexedDatasetWriter writer((folder_ / name).string(), formats::TokenType::kU16);
      std::vector<int32_t> document(500);
      uint32_t state = name[0];
      for (int d = 0; d < 40; ++d) {
        for (int32_t& token : document) {
          state = state * 1664525 + 1013904223;
          token = static_cast<int32_t>((state >> 16) % 31);
        }
        writer.add_document(document);
      }
      writer.commit();
    }
    std::ofstream(folder_ / "recipe.yaml")
        << R"(
model: {model_type: gated_deltanet, vocab_size: 31, hidden_size: 32, intermediate_size: 64,
  num_hidden_layers: 2, num_heads: 1, num_v_heads: 2, head_dim: 16, expand_v: 1}
data: {train: )"
        << (folder_ / "train").string() << ", valid: " << (folder_ / "valid").string() << R"(}
optimizer: {lr: 1e-3}
train: {train_iters: )"
        << kSteps << R"(, micro_batch_size: 2, global_batch_size: 12, seq_length: 32,
  eval_iters: 2}
parallel: {ddp_bucket_size: 3000, heartbeat_timeout_seconds: 2, collective_timeout_seconds: 5}
)";
  }

  std::string arguments(const std::string& out, const std::string& more = "") const {
    return "train --threads 1 --recipe " + (folder_ / "recipe.yaml").string() + " --out " +
           (folder_ / out).string() + " " + more;
  }

  // Runs to the end on so many ranks.
  void run(int size, const std::string& out, const std::string& more = "") {
    if (size == 1) {
      const auto result = test::run_program(arguments(out, more));
      ASSERT_EQ(result.exit_code, 0) << result.err;
      return;
    }
    ProgramRanks ranks;
    ranks.start_all(size, arguments(out, more));
    ASSERT_THAT(ranks.exit_codes(), Each(0)) << ranks.err(0) << ranks.err(1);
  }

  std::vector<nlohmann::json> lines(const std::string& out, const std::string& kind) const {
    std::ifstream file(folder_ / (out + "/metrics.jsonl"));
    std::vector<nlohmann::json> found;
    for (std::string line; std::getline(file, line);) {
      auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (entry.is_object() && entry["kind"] == kind) found.push_back(std::move(entry));
    }
    return found;
  }

  std::vector<double> values(const std::string& out, const std::string& kind,
                             const std::string& field) const {
    std::vector<double> found;
    for (const auto& entry : lines(out, kind)) found.push_back(entry.at(field).get<double>());
    return found;
  }

  void expect_near(const std::string& out, const std::string& like) const {
    for (const auto& [kind, field] : {std::pair{"step", "loss"},
                                      {"step", "grad_norm"},
                                      {"step", "tokens"},
                                      {"validation", "loss"},
                                      {"validation", "tokens"}}) {
      const std::vector<double> got = values(out, kind, field), want = values(like, kind, field);
      ASSERT_EQ(got.size(), want.size()) << kind << " " << field;
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << kind << " " << field << " " << i;
    }
  }

  std::string weights(const std::string& out, int64_t step) const {
    const auto path = checkpoint::checkpoint_path(folder_ / (out + "/checkpoints"), step);
    return read_file(path / "model.safetensors") + read_file(path / "optimizer.safetensors");
  }

  nlohmann::json verdict(const std::string& out, int rank) const {
    std::ifstream file(folder_ / (out + "/ranks/" + std::to_string(rank) + ".json"));
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  // Starts ranks that train for long, and waits for a checkpoint and some steps behind it.
  void start_long(ProgramRanks& ranks, int size, const std::string& out,
                  const std::string& more = "") {
    ranks.start_all(size, arguments(out,
                                    "--set train.train_iters=20000 --set "
                                    "schedule.lr_decay_iters=100 --set "
                                    "checkpoint.save_interval=7 " +
                                        more));
    ASSERT_TRUE(ProgramRanks::wait_until(60, [&] {
      return checkpoint::tracked_step(folder_ / (out + "/checkpoints")).has_value() &&
             lines(out, "step").size() > 10;
    })) << ranks.err(0);
  }

  // The last checkpoint is whole, and the run goes on from it, on one rank.
  void expect_resumable(const std::string& out) {
    const int64_t step = checkpoint::tracked_step(folder_ / (out + "/checkpoints")).value();
    run(1, out,
        "--resume --set schedule.lr_decay_iters=100 --set train.train_iters=" +
            std::to_string(step + 3));
    EXPECT_EQ(lines(out, "end").back()["step"], step + 3);
  }

  test::TemporaryFolder folder_;
};

struct Way {
  const char* name;
  const char* settings;
};

class RanksAgreeTest : public RanksTest, public testing::WithParamInterface<Way> {};

TEST_P(RanksAgreeTest, TwoRanksTrainAsOneAndRepeatBitForBit) {
  run(1, "one");
  run(2, "two", GetParam().settings);
  ASSERT_EQ(values("one", "step", "loss").size(), static_cast<size_t>(kSteps));
  expect_near("two", "one");
  run(2, "again", GetParam().settings);
  EXPECT_EQ(values("again", "step", "loss"), values("two", "step", "loss"));
  EXPECT_EQ(values("again", "step", "grad_norm"), values("two", "step", "grad_norm"));
  EXPECT_EQ(weights("again", kSteps), weights("two", kSteps));
  for (const int rank : {0, 1}) EXPECT_EQ(verdict("two", rank)["verdict"], "done") << rank;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, RanksAgreeTest,
    testing::Values(
        Way{"overlapped", ""},
        Way{"one_after_the_other", "--set parallel.overlap_grad_reduce=false"},
        Way{"sharded", "--set parallel.use_distributed_optimizer=true"},
        Way{"sharded_one_after_the_other",
            "--set parallel.use_distributed_optimizer=true --set "
            "parallel.overlap_grad_reduce=false --set parallel.overlap_param_gather=false"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST_F(RanksTest, TheTraceOfAStepHoldsEveryRank) {
  run(2, "out", "--profile --set train.train_iters=4 --set schedule.lr_decay_iters=4");
  const auto events = [&](const std::string& file) {
    return nlohmann::json::parse(read_file(folder_ / ("out/" + file))).at("traceEvents");
  };
  std::map<int, std::vector<nlohmann::json>> ops;
  for (const auto& event : events("profile.trace.json"))
    if (event.at("ph") == "X") ops[event.at("pid").get<int>()].push_back(event);
  ASSERT_EQ(ops.size(), 2U);
  for (const int rank : {0, 1}) {
    std::vector<nlohmann::json> own;
    for (const auto& event : events("profile/rank" + std::to_string(rank) + ".trace.json"))
      if (event.at("ph") == "X") own.push_back(event);
    EXPECT_GT(own.size(), 10U);
    EXPECT_EQ(ops[rank], own) << rank;
  }
}

// One checkpoint, whatever the number of ranks that wrote it.
TEST_F(RanksTest, ARunSavedOnTwoRanksGoesOnOnOneAndOnThree) {
  run(1, "whole");
  for (const bool sharded : {false, true}) {
    const std::string setting =
        std::string("--set parallel.use_distributed_optimizer=") + (sharded ? "true" : "false");
    for (const int size : {1, 3}) {
      const std::string out = "saved" + std::to_string(size) + (sharded ? "s" : "");
      run(2, out, setting + " --set train.train_iters=8 --set schedule.lr_decay_iters=20");
      // The schedule of the whole run, which ended at step 20.
      run(size, out, setting + " --resume --set schedule.lr_decay_iters=20");
      const std::vector<double> got = values(out, "step", "loss"),
                                want = values("whole", "step", "loss");
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << i;
    }
  }
}

TEST_F(RanksTest, AKilledRankIsNamedAndTheRunResumes) {
  ProgramRanks ranks;
  start_long(ranks, 2, "out");
  ranks.kill(1, SIGKILL);
  EXPECT_THAT(ranks.exit_codes(30), ElementsAre(6, 137));
  EXPECT_THAT(ranks.err(0), AllOf(HasSubstr("rank 1 (host "), HasSubstr("lost in step "),
                                  HasSubstr("killed or crashed")));
  const nlohmann::json said = verdict("out", 0);
  EXPECT_EQ(said["verdict"], "lost a rank");
  EXPECT_EQ(said["exit_code"], 6);
  EXPECT_EQ(said["lost"]["rank"], 1);
  EXPECT_GE(said["lost"]["step"].get<int64_t>(), 7);
  EXPECT_LE(said["lost"]["step"].get<int64_t>(), said["step"].get<int64_t>() + 1);
  EXPECT_NE(said["lost"]["call"], "");
  expect_resumable("out");
}

TEST_F(RanksTest, AKilledFirstRankIsNamed) {
  ProgramRanks ranks;
  start_long(ranks, 3, "out");
  ranks.kill(0, SIGKILL);
  EXPECT_THAT(ranks.exit_codes(30), ElementsAre(137, 6, 6));
  for (const int rank : {1, 2}) {
    EXPECT_THAT(ranks.err(rank), HasSubstr("rank 0 (host "));
    EXPECT_EQ(verdict("out", rank)["lost"]["rank"], 0);
  }
  expect_resumable("out");
}

TEST_F(RanksTest, AStoppedRankIsNamedAndEndsWhenItIsWoken) {
  ProgramRanks ranks;
  start_long(ranks, 3, "out", "--set parallel.use_distributed_optimizer=true");
  ranks.kill(1, SIGSTOP);
  ASSERT_TRUE(
      ProgramRanks::wait_until(30, [&] { return ranks.has_ended(0) && ranks.has_ended(2); }));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks.err(rank),
                AllOf(HasSubstr("rank 1 (host "), HasSubstr("no sign of life for 2 s")));
    EXPECT_EQ(verdict("out", rank)["lost"]["rank"], 1);
  }
  ranks.kill(1, SIGCONT);
  EXPECT_THAT(ranks.exit_codes(30), ElementsAre(6, 6, 6));
  EXPECT_EQ(verdict("out", 1)["verdict"], "lost a rank");
  expect_resumable("out");
}

TEST_F(RanksTest, ARankWithAnotherRecipeIsNamedByKey) {
  ProgramRanks ranks;
  const std::string port = std::to_string(test::free_port());
  for (const int rank : {0, 1}) {
    ranks.start(arguments("out", rank == 1 ? "--set optimizer.lr=2e-3" : ""),
                {{"RANK", std::to_string(rank)},
                 {"WORLD_SIZE", "2"},
                 {"MASTER_ADDR", "127.0.0.1"},
                 {"MASTER_PORT", port}});
  }
  EXPECT_THAT(ranks.exit_codes(), ElementsAre(2, 2));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks.err(rank),
                AllOf(HasSubstr("rank 1 (host "),
                      HasSubstr("recipe: expected optimizer.lr 0.001, as on rank 0"),
                      HasSubstr("got 0.002")));
    EXPECT_EQ(verdict("out", rank)["exit_code"], 2);
  }
  run(2, "out");  // what the refused run left behind is not in the way
}

TEST_F(RanksTest, ARankWithOtherDataIsNamed) {
  ProgramRanks ranks;
  const std::string port = std::to_string(test::free_port());
  for (const int rank : {0, 1}) {
    ranks.start(
        arguments("out", rank == 1 ? "--set data.train=" + (folder_ / "other").string() : ""),
        {{"RANK", std::to_string(rank)},
         {"WORLD_SIZE", "2"},
         {"MASTER_ADDR", "127.0.0.1"},
         {"MASTER_PORT", port}});
  }
  EXPECT_THAT(ranks.exit_codes(), ElementsAre(2, 2));
  for (const int rank : {0, 1})
    EXPECT_THAT(ranks.err(rank),
                AllOf(HasSubstr("rank 1 (host "), HasSubstr("digest of the data")));
}

// A rank that cannot start ends the others, who say why.
TEST_F(RanksTest, ARankThatFailsAloneIsNamedWithItsWords) {
  ProgramRanks ranks;
  const std::string port = std::to_string(test::free_port());
  for (const int rank : {0, 1}) {
    ranks.start(arguments("out", rank == 1 ? "--set data.train=/nowhere" : ""),
                {{"RANK", std::to_string(rank)},
                 {"WORLD_SIZE", "2"},
                 {"MASTER_ADDR", "127.0.0.1"},
                 {"MASTER_PORT", port}});
  }
  EXPECT_THAT(ranks.exit_codes(), ElementsAre(6, 2));
  EXPECT_THAT(ranks.err(0),
              AllOf(HasSubstr("rank 1 (host "), HasSubstr("exit code 2"), HasSubstr("/nowhere")));
}

TEST_F(RanksTest, ANumberOfRanksThatDoesNotDivideTheBatchIsRefused) {
  ProgramRanks ranks;
  ranks.start_all(4, arguments("out"));
  EXPECT_THAT(ranks.exit_codes(), Each(2));
  EXPECT_THAT(
      ranks.err(0),
      HasSubstr("train.global_batch_size 12 / train.micro_batch_size 2: 1, 2, 3, 6, got 4"));
}

TEST_F(RanksTest, ASignalToOneRankStopsAllBehindACheckpoint) {
  ProgramRanks ranks;
  start_long(ranks, 2, "out");
  ranks.kill(1, SIGTERM);
  EXPECT_THAT(ranks.exit_codes(30), ElementsAre(143, 143));
  const int64_t step = lines("out", "end").back()["step"];
  EXPECT_EQ(checkpoint::tracked_step(folder_ / "out/checkpoints"), step);
  for (const int rank : {0, 1}) EXPECT_EQ(verdict("out", rank)["verdict"], "stopped by a signal");
  expect_resumable("out");
}

TEST_F(RanksTest, MpirunStartsRanks) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no mpirun on this machine";
  run(1, "one");
  ProgramRanks ranks;
  ranks.start(arguments("out"),
              {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}},
              {"mpirun", "-n", "2", "--oversubscribe"});
  EXPECT_THAT(ranks.exit_codes(), Each(0)) << ranks.err(0);
  expect_near("out", "one");
  EXPECT_EQ(verdict("out", 1)["size"], 2);
}

// Two network namespaces, joined by a pair of interfaces, stand for two hosts.
class Namespaces {
 public:
  Namespaces() {
    const std::string id = std::to_string(::getpid());
    for (const int i : {0, 1}) names_.push_back("dt" + id + (i == 0 ? "a" : "b"));
    const std::string link_a = "dta" + id, link_b = "dtb" + id;
    std::string script =
        "set -e; exec >/dev/null 2>&1; ip netns add " + names_[0] + "; ip netns add " + names_[1];
    script += "; ip link add " + link_a + " type veth peer name " + link_b;
    for (const int i : {0, 1}) {
      const std::string& link = i == 0 ? link_a : link_b;
      script += "; ip link set " + link + " netns " + names_[static_cast<size_t>(i)];
      const std::string in = "; ip -n " + names_[static_cast<size_t>(i)] + " ";
      script += in + "addr add 10.213.7." + std::to_string(i + 1) + "/24 dev " + link;
      script += in + "link set " + link + " up" + in + "link set lo up";
    }
    works_ = ::geteuid() == 0 && std::system(script.c_str()) == 0;
  }
  ~Namespaces() {
    for (const std::string& name : names_)
      (void)!std::system(("ip netns del " + name + " >/dev/null 2>&1").c_str());
  }
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  bool works() const { return works_; }
  std::vector<std::string> enter(int host) const {
    return {"ip", "netns", "exec", names_[static_cast<size_t>(host)]};
  }
  // The cable is pulled.
  void cut() const {
    (void)!std::system(
        ("ip -n " + names_[0] + " link set dta" + std::to_string(::getpid()) + " down").c_str());
  }

 private:
  std::vector<std::string> names_;
  bool works_ = false;
};

TEST_F(RanksTest, TwoHostsTrainAsOneAndNoticeACutConnection) {
  const Namespaces hosts;
  if (!hosts.works()) GTEST_SKIP() << "network namespaces need root and the program ip";
  run(1, "one");
  const auto start = [&](ProgramRanks& ranks, const std::string& all_arguments) {
    const std::string port = std::to_string(test::free_port());
    for (const int rank : {0, 1}) {
      ranks.start(all_arguments,
                  {{"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", "2"},
                   {"LOCAL_RANK", "0"},
                   {"MASTER_ADDR", "10.213.7.1"},
                   {"MASTER_PORT", port}},
                  hosts.enter(rank));
    }
  };
  {
    ProgramRanks ranks;
    start(ranks, arguments("out"));
    EXPECT_THAT(ranks.exit_codes(), Each(0)) << ranks.err(0) << ranks.err(1);
    expect_near("out", "one");
  }
  ProgramRanks ranks;
  start(ranks, arguments("cut", "--set train.train_iters=20000 --set schedule.lr_decay_iters=100"));
  ASSERT_TRUE(ProgramRanks::wait_until(60, [&] { return lines("cut", "step").size() > 5; }))
      << ranks.err(0);
  hosts.cut();
  EXPECT_THAT(ranks.exit_codes(30), ElementsAre(6, 6));
  EXPECT_THAT(ranks.err(0), AllOf(HasSubstr("rank 1 (host "), HasSubstr("no sign of life")));
  EXPECT_THAT(ranks.err(1), AllOf(HasSubstr("rank 0 (host "), HasSubstr("no sign of life")));
}

}  // namespace
}  // namespace deltatrain::train
