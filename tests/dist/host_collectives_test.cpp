#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "dist/collectives.h"
#include "dist/threads_as_ranks.h"

namespace deltatrain::dist {
namespace {

using test::free_port;
using test::place_of;
using test::run_ranks;
using test::short_timeouts;
using testing::Each;

Tensor tensor_of(std::vector<float>& values) {
  return Tensor(values.data(), DType::kF32, {static_cast<int64_t>(values.size())});
}

// Whole numbers, whose sums are exact in any order.
float value_of(int rank, size_t i) {
  return static_cast<float>(1000 * rank) + static_cast<float>(i % 997);
}
float sum_of(int size, size_t i) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += value_of(r, i);
  return sum;
}

std::vector<float> values_of(int rank, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = value_of(rank, i);
  return values;
}

class HostCollectivesTest : public testing::TestWithParam<int> {
 protected:
  void on_ranks(const std::function<void(int, Collectives&)>& body) const {
    const int port = free_port(), size = GetParam();
    const auto thrown = run_ranks(size, [&](int rank) {
      Communicator ranks(place_of(rank, size, port), "1", short_timeouts());
      {
        const auto collectives = make_host_collectives(ranks);
        body(rank, *collectives);
        ranks.all_gather("end", "");
      }
      ranks.leave(0, "");
    });
    EXPECT_THAT(thrown, Each(""));
  }
};

TEST_P(HostCollectivesTest, SumsExactly) {
  const int size = GetParam();
  on_ranks([size](int rank, Collectives& collectives) {
    for (const size_t n : {size_t{1}, size_t{5}, size_t{1000}, size_t{1} << 20}) {
      std::vector<float> values = values_of(rank, n);
      collectives.wait(collectives.all_reduce(tensor_of(values)));
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(values[i], sum_of(size, i)) << n << " " << i;
    }
  });
}

TEST_P(HostCollectivesTest, ScattersSumsAndGathersParts) {
  const int size = GetParam();
  const size_t part = 77, n = part * static_cast<size_t>(size);
  on_ranks([=](int rank, Collectives& collectives) {
    std::vector<float> values = values_of(rank, n);
    collectives.wait(collectives.reduce_scatter(tensor_of(values)));
    const size_t begin = part * static_cast<size_t>(rank);
    for (size_t i = begin; i < begin + part; ++i) ASSERT_EQ(values[i], sum_of(size, i)) << i;
    // What is not this rank's is poison until the parts come.
    for (size_t i = 0; i < n; ++i) {
      if (i < begin || i >= begin + part) values[i] = std::nanf("");
    }
    collectives.wait(collectives.all_gather(tensor_of(values)));
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(values[i], sum_of(size, i)) << i;
  });
}

TEST_P(HostCollectivesTest, BroadcastsRank0s) {
  on_ranks([](int rank, Collectives& collectives) {
    std::vector<float> values = values_of(rank, 3 << 18);  // several pieces
    collectives.wait(collectives.broadcast(tensor_of(values)));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], value_of(0, i)) << i;
  });
}

// Numbers whose sum depends on the order of the addends: the same bits on all ranks and every time.
TEST_P(HostCollectivesTest, GivesTheSameBitsOnAllRanksAndEveryTime) {
  const int size = GetParam();
  constexpr size_t kCount = 4099;
  std::vector<std::vector<float>> results(static_cast<size_t>(size));
  std::vector<float> first;
  for (int time = 0; time < 3; ++time) {
    on_ranks([&](int rank, Collectives& collectives) {
      std::vector<float> values(kCount);
      for (size_t i = 0; i < kCount; ++i)
        values[i] = std::sin(static_cast<float>(i + 1) * static_cast<float>(rank + 1)) *
                    std::pow(10.0F, static_cast<float>((i + static_cast<size_t>(rank)) % 7));
      collectives.wait(collectives.all_reduce(tensor_of(values)));
      results[static_cast<size_t>(rank)] = values;
    });
    if (first.empty()) first = results[0];
    for (const auto& result : results)
      ASSERT_EQ(std::memcmp(result.data(), first.data(), kCount * sizeof(float)), 0);
  }
}

// Calls queue up and overlap with the caller's work; the last ticket covers all.
TEST_P(HostCollectivesTest, KeepsTheOrderOfCalls) {
  const int size = GetParam();
  on_ranks([size](int rank, Collectives& collectives) {
    std::vector<std::vector<float>> all;
    for (size_t k = 0; k < 20; ++k) all.push_back(values_of(rank, 100 * (k + 1)));
    Collectives::Ticket last = 0;
    for (auto& values : all) last = collectives.all_reduce(tensor_of(values));
    collectives.wait(last);
    for (const auto& values : all) {
      for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], sum_of(size, i));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostCollectivesTest, testing::Values(2, 3, 5),
                         [](const auto& tested) { return std::to_string(tested.param); });

// A rank that leaves in the middle ends the others' waiting.
TEST(HostCollectivesLossTest, ALostRankEndsTheWaiting) {
  const int port = free_port();
  const auto thrown = run_ranks(3, [port](int rank) {
    Communicator ranks(place_of(rank, 3, port), "1", short_timeouts());
    const auto collectives = make_host_collectives(ranks);
    if (rank == 1) {
      ranks.leave(2, "broken");
      return;
    }
    std::vector<float> values(1 << 20, 1);
    collectives->wait(collectives->all_reduce(tensor_of(values)));
  });
  EXPECT_THAT(thrown[0], testing::HasSubstr("rank 1 (host "));
  EXPECT_THAT(thrown[2], testing::HasSubstr("rank 1 (host "));
}

}  // namespace
}  // namespace deltatrain::dist
