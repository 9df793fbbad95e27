// Goal: operations of all tenants enter a communicator in one order on all of its ranks, however the
// workers hear of them; without the order they would not, and the test can tell.
#include "daemon/backend/cuda/members/issue_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "daemon/backend/cuda/members/communicator.h"
#include "tests/fakes/cuda/fake_nccl.h"

namespace epd::cuda {
namespace {

using ::testing::Eq;
using ::testing::Optional;

TEST(IssueOrder, IssuesByPlaceAndNotByReadiness) {
  IssueOrder order;
  order.Prepared(20);
  ASSERT_TRUE(order.Placed(10, 0).ok());
  ASSERT_TRUE(order.Placed(20, 1).ok());
  EXPECT_EQ(order.Next(), std::nullopt);
  order.Prepared(10);
  EXPECT_THAT(order.Next(), Optional(Eq(10u)));
  EXPECT_THAT(order.Next(), Optional(Eq(20u)));
  EXPECT_EQ(order.Next(), std::nullopt);
  EXPECT_EQ(order.num_held(), 0u);
}

TEST(IssueOrder, WaitsForAPlaceThatItHasNotHeardOf) {
  IssueOrder order;
  order.Prepared(20);
  ASSERT_TRUE(order.Placed(20, 1).ok());
  EXPECT_EQ(order.Next(), std::nullopt);
}

TEST(IssueOrder, AnOperationThatNeverGetsAPlaceIsForgotten) {
  IssueOrder order;
  order.Prepared(10);
  EXPECT_EQ(order.num_held(), 1u);
  order.Forget(10);
  EXPECT_EQ(order.num_held(), 0u);
}

TEST(IssueOrder, ALeaderThatContradictsItselfIsFoundOut) {
  IssueOrder order;
  ASSERT_TRUE(order.Placed(10, 0).ok());
  EXPECT_TRUE(order.Placed(10, 0).ok()) << "said again";
  EXPECT_EQ(order.Placed(10, 1).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(order.Placed(20, 0).code(), absl::StatusCode::kAlreadyExists);
  order.Prepared(10);
  ASSERT_TRUE(order.Next().has_value());
  EXPECT_EQ(order.Placed(30, 0).code(), absl::StatusCode::kAlreadyExists);
}

// Two tenants' operations on the workers of three nodes. What a worker hears, and when its rows are
// staged, comes in any order.
class Tenants {
 public:
  static constexpr int kRanks = 3;
  static constexpr int kOperations = 12;  // Even: the first tenant's, odd: the second's.

  explicit Tenants(uint64_t seed) : random_(seed) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<Communicator>(
          nccl_.table(), CommunicatorOptions{.num_ranks = kRanks, .rank = rank}));
      ranks_.back()->Begin(FakeNccl::IdOf(1), absl::UnixEpoch());
    }
    const auto ready = [](const auto& rank) { return rank->state() == CommState::kReady; };
    for (int i = 0; i < 10'000 && !std::all_of(ranks_.begin(), ranks_.end(), ready); ++i) {
      for (auto& rank : ranks_) rank->Poll(absl::UnixEpoch());
      usleep(1000);
    }
  }

  // Returns what FakeNccl says of the pairing.
  std::string Run(bool ordered) {
    for (int rank = 0; rank < kRanks; ++rank) {
      IssueOrder order;
      for (const int step : Shuffled(2 * kOperations)) {
        const OrderedOperation operation = static_cast<OrderedOperation>(step / 2);
        if (step % 2 == 0) {
          EXPECT_TRUE(order.Placed(operation, /*place=*/operation).ok());
        } else {
          order.Prepared(operation);
          if (!ordered) Issue(rank, operation);
        }
        while (const auto next = order.Next()) {
          if (ordered) Issue(rank, *next);
        }
      }
      EXPECT_EQ(order.num_held(), 0u);
    }
    return nccl_.PairUp();
  }

 private:
  std::vector<int> Shuffled(int count) {
    std::vector<int> steps(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) steps[static_cast<size_t>(i)] = i;
    std::shuffle(steps.begin(), steps.end(), random_);
    return steps;
  }

  // Every operation has another size, so that a wrong partner is seen.
  void Issue(int rank, OrderedOperation operation) {
    std::vector<PeerBytes> peers;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      peers.push_back({peer, &peers, 64 + operation, &peers, 64 + operation});
    }
    EXPECT_TRUE(ranks_[static_cast<size_t>(rank)]->Issue(peers, nullptr, absl::UnixEpoch()).ok());
  }

  std::mt19937_64 random_;
  FakeNccl nccl_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

TEST(IssueOrder, TwoTenantsOperationsMeetTheirPartnersInEveryOrderOfHearing) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    EXPECT_EQ(Tenants(seed).Run(/*ordered=*/true), "") << "seed " << seed;
  }
}

TEST(IssueOrder, WithoutTheOrderTheyDoNot) {
  int num_wrong = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) num_wrong += !Tenants(seed).Run(false).empty();
  EXPECT_GT(num_wrong, 10);
}

}  // namespace
}  // namespace epd::cuda
