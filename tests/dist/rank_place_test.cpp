#include "dist/rank_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace deltatrain::dist {
namespace {

using testing::HasSubstr;

RankPlace place_in(const std::map<std::string, std::string>& variables) {
  return find_rank_place([&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const std::map<std::string, std::string>& variables) {
  try {
    place_in(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RankPlaceTest, WithoutALauncherThereIsOneRank) {
  EXPECT_EQ(place_in({}).size, 1);
  EXPECT_EQ(place_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).size, 1)
      << "a batch script is not a rank";
}

TEST(RankPlaceTest, TakesTorchrunsVariables) {
  const RankPlace place = place_in({{"RANK", "5"},
                                    {"WORLD_SIZE", "8"},
                                    {"LOCAL_RANK", "1"},
                                    {"MASTER_ADDR", "node0"},
                                    {"MASTER_PORT", "1234"}});
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.address, "node0");
  EXPECT_EQ(place.port, 1234);
}

TEST(RankPlaceTest, LeavesTorchrunsAgentItsPort) {
  const RankPlace place = place_in({{"RANK", "0"},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "a"},
                                    {"MASTER_PORT", "1234"},
                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(place.port, 1235);
}

TEST(RankPlaceTest, TakesOpenMpisVariables) {
  std::map<std::string, std::string> variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                  {"PMIX_NAMESPACE", "job-1"}};
  const RankPlace place = place_in(variables);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.address, "127.0.0.1");
  EXPECT_GE(place.port, 20000);
  EXPECT_LT(place.port, 30000);
  variables["PMIX_NAMESPACE"] = "job-2";
  EXPECT_NE(place_in(variables).port, place.port) << "two jobs on one host";
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THAT(refusal(variables), HasSubstr("MASTER_ADDR: expected the host of rank 0"));
}

TEST(RankPlaceTest, TakesSlurmsVariables) {
  const RankPlace place = place_in({{"SLURM_PROCID", "3"},
                                    {"SLURM_STEP_NUM_TASKS", "4"},
                                    {"SLURM_LOCALID", "1"},
                                    {"SLURM_STEP_ID", "0"},
                                    {"SLURM_JOB_ID", "77"},
                                    {"SLURM_STEP_NODELIST", "gpu[003-005,7]"}});
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.address, "gpu003");
  EXPECT_GE(place.port, 20000);
}

TEST(RankPlaceTest, ReadsSlurmsLists) {
  EXPECT_EQ(first_slurm_host("a"), "a");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("a[1,3-4],b"), "a1");
  EXPECT_EQ(first_slurm_host("a[01-04]-x.org,b"), "a01-x.org");
  EXPECT_EQ(first_slurm_host("a["), "");
  EXPECT_EQ(first_slurm_host("a[]"), "");
  EXPECT_EQ(first_slurm_host("a[x-y]"), "");
  EXPECT_EQ(first_slurm_host("a[1]b[2]"), "");
}

TEST(RankPlaceTest, RefusesWhatIsIncompleteOrOutOfRange) {
  EXPECT_THAT(refusal({{"RANK", "0"}}),
              HasSubstr("RANK and WORLD_SIZE: expected both, got only RANK"));
  EXPECT_THAT(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
              HasSubstr("RANK: expected less than WORLD_SIZE 2, got 2"));
  EXPECT_THAT(refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), HasSubstr("got \"x\""));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "99999"}}),
              HasSubstr("a number from 1 to 4096"));
  EXPECT_THAT(
      refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"}}),
      HasSubstr("MASTER_PORT"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR"));
}

}  // namespace
}  // namespace deltatrain::dist
