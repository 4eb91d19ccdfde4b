#include "dist/communicator.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"
#include "dist/threads_as_ranks.h"

namespace deltatrain::dist {
namespace {

using test::free_port;
using test::place_of;
using test::run_ranks;
using test::short_timeouts;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CommunicatorTest, GathersTextsInTheOrderOfRanks) {
  const int port = free_port();
  const auto thrown = run_ranks(4, [port](int rank) {
    Communicator ranks(place_of(rank, 4, port), "1", short_timeouts());
    EXPECT_EQ(ranks.rank(), rank);
    EXPECT_EQ(ranks.size(), 4);
    EXPECT_EQ(ranks.local_rank(), rank);
    EXPECT_EQ(ranks.local_size(), 4);
    EXPECT_THAT(ranks.all_gather("a", std::to_string(rank)), ElementsAre("0", "1", "2", "3"));
    EXPECT_EQ(ranks.broadcast("b", "of " + std::to_string(rank)), "of 0");
    const std::string large(size_t{3} << 20, static_cast<char>('a' + rank));
    EXPECT_EQ(ranks.all_gather("c", large)[2], std::string(large.size(), 'c'));
    EXPECT_NO_THROW(ranks.agree("recipe", "same"));
    ranks.all_gather("end", "");
    ranks.leave(0, "");
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST(CommunicatorTest, NamesTheRankThatDisagrees) {
  const int port = free_port();
  const auto thrown = run_ranks(3, [port](int rank) {
    Communicator ranks(place_of(rank, 3, port), "1", short_timeouts());
    ranks.agree("recipe digest", rank == 2 ? "b" : "a");
  });
  EXPECT_THAT(thrown, Each(AllOf(HasSubstr("rank 2 (host "), HasSubstr("recipe digest: expected a"),
                                 HasSubstr("got b"))));
}

TEST(CommunicatorTest, NamesARankOfAnotherVersionOrSize) {
  int port = free_port();
  EXPECT_THAT(run_ranks(2,
                        [port](int rank) {
                          Communicator ranks(place_of(rank, 2, port), rank == 1 ? "2" : "1",
                                             short_timeouts());
                        }),
              Each(AllOf(HasSubstr("rank 1"), HasSubstr("version of the program: expected 1"),
                         HasSubstr("got 2"))));
  port = free_port();
  EXPECT_THAT(run_ranks(2,
                        [port](int rank) {
                          Communicator ranks(place_of(rank, rank == 1 ? 3 : 2, port), "1",
                                             short_timeouts());
                        }),
              Each(AllOf(HasSubstr("rank 1"), HasSubstr("number of ranks: expected 2"),
                         HasSubstr("got 3"))));
}

TEST(CommunicatorTest, NamesARankThatComesTwice) {
  const int port = free_port();
  const auto thrown = run_ranks(3, [port](int thread) {
    Communicator ranks(place_of(thread == 2 ? 1 : thread, 3, port), "1", short_timeouts());
  });
  // Of the two, rank 0 tells at least one.
  EXPECT_THAT(thrown[0],
              AllOf(HasSubstr("rank 1: expected one process, got two"), HasSubstr(" process ")));
}

TEST(CommunicatorTest, NamesTheRanksThatDoNotCome) {
  const int port = free_port();
  Timeouts timeouts = short_timeouts();
  timeouts.connect_seconds = 1;
  const auto thrown =
      run_ranks(2, [&](int rank) { Communicator ranks(place_of(rank, 4, port), "1", timeouts); });
  EXPECT_THAT(thrown, Each(AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)),
                                 HasSubstr("4 ranks within 1 s"), HasSubstr("missing: 2, 3"))));
}

TEST(CommunicatorTest, APortThatIsTakenIsAnError) {
  const int port = free_port();
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(descriptor, 1), 0);
  try {
    Communicator ranks(place_of(0, 2, port), "1", short_timeouts());
    FAIL();
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(port)));
  }
  ::close(descriptor);
}

// Connects like a port scanner, before the ranks and beside them.
TEST(CommunicatorTest, StrangersDoNotDisturb) {
  const int port = free_port();
  std::atomic<bool> over = false;
  std::thread stranger([&] {
    while (!over) {
      const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port));
      if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
        (void)!::send(descriptor, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
      ::close(descriptor);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto thrown = run_ranks(3, [port](int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * rank));
    Communicator ranks(place_of(rank, 3, port), "1", short_timeouts());
    ranks.all_gather("end", "");
    ranks.leave(0, "");
  });
  over = true;
  stranger.join();
  EXPECT_THAT(thrown, Each(""));
}

// A rank that ends with an error is named, with step, call and its words, while others wait for it.
TEST(CommunicatorTest, ARankThatFailsIsNamedByAll) {
  const int port = free_port();
  const auto thrown = run_ranks(3, [port](int rank) {
    Communicator ranks(place_of(rank, 3, port), "1", short_timeouts());
    ranks.set_step(7);
    if (rank == 1) {
      ranks.set_call("data");
      ranks.leave(2, "tokens.bin: broken");
      return;
    }
    ranks.all_gather("gradients", "");
  });
  EXPECT_EQ(thrown[1], "");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(thrown[static_cast<size_t>(rank)],
                AllOf(HasSubstr("rank 1 (host "), HasSubstr("step 7"), HasSubstr("in \"data\""),
                      HasSubstr("exit code 2: tokens.bin: broken")));
  }
}

TEST(CommunicatorTest, Rank0ThatFailsIsNamedByAll) {
  const int port = free_port();
  const auto thrown = run_ranks(3, [port](int rank) {
    Communicator ranks(place_of(rank, 3, port), "1", short_timeouts());
    if (rank == 0) {
      ranks.leave(5, "disk full");
      return;
    }
    ranks.all_gather("gradients", "");
  });
  for (const int rank : {1, 2})
    EXPECT_THAT(thrown[static_cast<size_t>(rank)],
                AllOf(HasSubstr("rank 0 (host "), HasSubstr("exit code 5: disk full")));
}

// Its thread for the heartbeat lives, but it does not come.
TEST(CommunicatorTest, ARankThatDoesNotComeToACallIsNamed) {
  const int port = free_port();
  std::promise<void> over;
  const std::shared_future<void> wait = over.get_future().share();
  std::atomic<int> ended = 0;
  const auto thrown = run_ranks(3, [&](int rank) {
    Communicator ranks(place_of(rank, 3, port), "1", short_timeouts());
    ranks.all_gather("first", "");
    ranks.set_step(4);
    if (rank == 2) {
      ranks.set_call("reading");
      wait.wait();
      // The others know before the message of it is here.
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (std::chrono::steady_clock::now() < end) {
        ranks.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return;
    }
    try {
      ranks.all_gather("gradients", "");
    } catch (...) {
      if (++ended == 2) over.set_value();
      throw;
    }
  });
  EXPECT_THAT(thrown,
              Each(AllOf(HasSubstr("rank 2 (host "), HasSubstr("step 4"),
                         HasSubstr("in \"reading\""), HasSubstr("did not come to the call"))));
}

// What a rank that cannot be woken does: the caller's last resort is called.
TEST(CommunicatorTest, TellsWhenARankDoesNotEndAfterALoss) {
  const int port = free_port();
  Timeouts timeouts = short_timeouts();
  timeouts.grace_seconds = 0.2;
  std::promise<std::string> told;
  const auto thrown = run_ranks(2, [&](int rank) {
    Communicator ranks(place_of(rank, 2, port), "1", timeouts);
    if (rank == 1) {
      ranks.leave(1, "internal error");
      return;
    }
    ranks.on_stuck([&told](const Loss& loss) { told.set_value(loss.text()); });
    EXPECT_THAT(told.get_future().get(), HasSubstr("internal error"));
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST(CommunicatorTest, NamesARankInAnotherCall) {
  const int port = free_port();
  const auto thrown = run_ranks(2, [port](int rank) {
    Communicator ranks(place_of(rank, 2, port), "1", short_timeouts());
    ranks.all_gather(rank == 0 ? "save" : "step", "");
  });
  EXPECT_THAT(thrown[0], AllOf(HasSubstr("rank 1"), HasSubstr("expected \"save\""),
                               HasSubstr("got \"step\"")));
}

}  // namespace
}  // namespace deltatrain::dist
