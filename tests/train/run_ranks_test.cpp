#include "train/run_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/threads_as_ranks.h"

namespace deltatrain::train {
namespace {

using dist::test::free_port;
using dist::test::place_of;
using dist::test::run_ranks;
using dist::test::short_timeouts;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

TEST(RunRanksTest, WeightsThatDifferAreNamedOnEveryRank) {
  const int port = free_port();
  const auto thrown = run_ranks(3, [port](int rank) {
    dist::Communicator communicator(place_of(rank, 3, port), "1", short_timeouts());
    RunRanks ranks(&communicator);
    ranks.compare_weights(6, 0xABC);
    try {
      ranks.compare_weights(7, rank == 2 ? 0xABD : 0xABC);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kCheckFailed);
      throw;
    }
  });
  EXPECT_THAT(thrown, Each(AllOf(HasSubstr("rank 2 (host "),
                                 HasSubstr("checksum of the weights after step 7"),
                                 HasSubstr("expected 0000000000000abc, as on rank 0"),
                                 HasSubstr("got 0000000000000abd"))));
}

TEST(RunRanksTest, TheLargestSignalCountsForAll) {
  const int port = free_port();
  const auto thrown = run_ranks(3, [port](int rank) {
    dist::Communicator communicator(place_of(rank, 3, port), "1", short_timeouts());
    RunRanks ranks(&communicator);
    EXPECT_EQ(ranks.most("end of step", rank == 1 ? 15 : 0), 15);
    EXPECT_EQ(ranks.most("end of step", 0), 0);
    ranks.meet("end");
    communicator.leave(0, "");
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST(RunRanksTest, AloneNothingIsAsked) {
  RunRanks ranks(nullptr);
  EXPECT_TRUE(ranks.is_first());
  EXPECT_EQ(ranks.size(), 1);
  EXPECT_EQ(ranks.most("end of step", 2), 2);
  EXPECT_EQ(ranks.share("x"), "x");
  ranks.compare_weights(1, 2);
  ranks.check();
}

}  // namespace
}  // namespace deltatrain::train
