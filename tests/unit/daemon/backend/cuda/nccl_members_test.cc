// Goal: workers whose rows go by NCCL move them with the bits that the CPU backend gives, in one message per rank and peer;
// of a dispatch each row goes once to a rank, however many of its experts the token has, and of a combine no byte goes that
// no rank reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/landing.h"
#include "tests/unit/daemon/backend/cuda/nccl_members_harness.h"

namespace epd::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Status kGood = absl::OkStatus();

class NcclMembers : public SendingMembers {
 protected:
  NcclMembers() { by_nccl_ = 0; }
};

class NcclMembersOn : public NcclMembers, public ::testing::WithParamInterface<Node> {};
INSTANTIATE_TEST_SUITE_P(
    Nodes, NcclMembersOn,
    ::testing::Values(OneRankEach({0, 1}), OneRankEach({0, 1, 2, 3, 4, 5, 6, 7}),
                      Node{.devices = {0, 1}, .member_of_rank = {0, 1, 0, 1}},
                      Node{.devices = {2, 0, 1}, .member_of_rank = {0, 0, 1, 2, 0, 1, 2, 2}}));

TEST_P(NcclMembersOn, ScatterWithTheBitsOfTheCpuBackendAndEachRowOnceToARank) {
  FormByNccl(GetParam());
  // Twice: the second time the sizes are known.
  for (int step = 0; step < 2; ++step) {
    StageDispatch();
    MoveCounted();
    ExpectDispatched();
    EXPECT_EQ(g_sends.load(), Scattered().first);
    EXPECT_EQ(g_bytes.load(), Scattered().second);
  }
}

TEST_P(NcclMembersOn, PrepareWithTheCountsOfAllInOneMessagePerRankAndPeer) {
  FormByNccl(GetParam());
  for (int step = 0; step < 2; ++step) {
    StagePrepare();
    MoveCounted();
    ExpectPrepared();
    const uint64_t messages = num_ranks() * (workers_.size() - 1);
    EXPECT_EQ(static_cast<uint64_t>(g_sends), messages);
    EXPECT_EQ(g_bytes.load(), messages * CountsBytes());
  }
}

// A copy of tables, and a launch of each step for all ranks of a worker: of a prepare what brings the worker's own counts and
// what spreads the others'; the checks of plans in three, of a scatter five that land rows, five that expand them, of a gather
// what packs rows, finds them, checks tables and sums; and what they found.
TEST_P(NcclMembersOn, PutAsManyLaunchesIntoTheirStreamsForSeveralRanksAsForOne) {
  FormByNccl(GetParam());
  const auto workers = static_cast<int>(workers_.size());
  const auto put = [this, workers](const std::function<void()>& stage, int fills) {
    // The first of a plan also counts its tokens.
    stage();
    MoveCounted();
    stage();
    const int copies_before = driver_->CountCalls("cuMemcpyAsync");
    const int launches_before = driver_->CountCalls("cuLaunchKernel");
    const int fills_before = driver_->CountCalls("cuMemsetD8Async");
    MoveCounted();
    EXPECT_EQ(driver_->CountCalls("cuMemcpyAsync") - copies_before, workers);
    EXPECT_EQ(driver_->CountCalls("cuMemsetD8Async") - fills_before, fills * workers);
    return (driver_->CountCalls("cuLaunchKernel") - launches_before) / workers;
  };
  EXPECT_EQ(put([this] { StagePrepare(); }, 0), 2);
  ExpectPrepared();
  EXPECT_EQ(put([this] { StageDispatch(); }, 1), 3 + 5 + 5 + 1);
  ExpectDispatched();
  EXPECT_EQ(put([this] { StageCombine(/*has_weights=*/true); }, 1), 3 + 4 + 1);
  ExpectCombined(/*has_weights=*/true);
}

// Beside the tables: the counts of each rank, and of a scatter its table and how many tokens it has for each rank.
TEST_P(NcclMembersOn, ReadWhatSizesFollowFromOnceOfAPlan) {
  FormByNccl(GetParam());
  const auto copies = [this](bool scatters) {
    if (scatters) {
      StageDispatch();
    } else {
      StageCombine(/*has_weights=*/false);
    }
    const int before = driver_->CountCalls("cuMemcpyAsync");
    MoveCounted();
    return driver_->CountCalls("cuMemcpyAsync") - before;
  };
  const auto workers = static_cast<int>(workers_.size());
  const auto ranks = static_cast<int>(num_ranks());
  EXPECT_EQ(copies(/*scatters=*/false), workers + ranks);
  EXPECT_EQ(copies(/*scatters=*/false), workers);
  EXPECT_EQ(copies(/*scatters=*/true), workers + 3 * ranks) << "no gather asks for tokens";
  EXPECT_EQ(copies(/*scatters=*/true), workers);
  EXPECT_EQ(copies(/*scatters=*/false), workers);
}

// Every token has all its routes to one rank.
TEST_P(NcclMembersOn, ScatterARowOnceWhereAllItsRoutesLeadToOneRank) {
  one_rank_per_token_ = true;
  FormByNccl(GetParam());
  StageDispatch();
  MoveCounted();
  ExpectDispatched();
  const uint64_t told = g_bytes;
  EXPECT_EQ(told, Scattered().second);
  uint64_t num_rows = 0;
  for (size_t r = 0; r < num_ranks(); ++r) {
    num_rows += static_cast<uint64_t>(problem_.NumTokens(static_cast<int>(r)));
  }
  // Each landing has a header, and rows begin at a multiple of 64 bytes.
  const auto a_row = kRowBytes + static_cast<uint64_t>(problem_.top_k) * sizeof(LandingEntry);
  EXPECT_LE(told, num_rows * a_row + static_cast<uint64_t>(g_sends) * 128);
  tells_tokens_ = false;
  StageDispatch();
  MoveCounted();
  EXPECT_GT(g_bytes.load(), 2 * told);
}

// A gather reads no tokens, and a scatter behind it does not go by what that has read.
TEST_P(NcclMembersOn, ScatterBehindAGatherOfTheSamePlan) {
  FormByNccl(GetParam());
  StageCombine(false);
  MoveCounted();
  EXPECT_THAT(tokens_to_, Each(IsEmpty()));
  StageDispatch();
  MoveCounted();
  ExpectDispatched();
  EXPECT_EQ(g_bytes.load(), Scattered().second);
}

// One member has not said how many tokens it has: all go by the counts.
TEST_P(NcclMembersOn, ScatterWithTheSameBitsWhereTokensAreNotTold) {
  FormByNccl(GetParam());
  StageDispatch();
  tells_tokens_ = false;
  MoveCounted();
  ExpectDispatched();
  EXPECT_EQ(g_sends.load(), Scattered().first);
  EXPECT_GE(g_bytes.load(), Scattered().second);
}

// A client may write anything into its plan at any time: while its tokens are counted, and behind that. Sizes are then wrong, but
// wrong alike on both sides of every pair, or the fake would never end; what fails says why, and the next call is good.
class NcclMembersWithALiar : public NcclMembers,
                             public ::testing::WithParamInterface<std::tuple<Node, PlanRoute>> {};
INSTANTIATE_TEST_SUITE_P(Nodes, NcclMembersWithALiar,
                         ::testing::Combine(::testing::Values(OneRankEach({0, 1, 2, 3}),
                                                              Node{.devices = {0, 1},
                                                                   .member_of_rank = {0, 1, 0, 1}}),
                                            ::testing::Values(PlanRoute{-1, 0}, PlanRoute{0, 0},
                                                              PlanRoute{1 << 20, -3})));

TEST_P(NcclMembersWithALiar, FailTheOperationAndNothingElse) {
  const PlanRoute lie = std::get<1>(GetParam());
  FormByNccl(std::get<0>(GetParam()));
  const size_t liar = num_ranks() - 1;
  StageDispatch();
  char* const at = RegionAt(liar) + PlanTableOffset(problem_.num_ranks, problem_.num_experts);
  const std::vector<PlanRoute> lies(problem_.topk[liar].size(), lie);
  std::vector<PlanRoute> table(lies.size());
  std::memcpy(table.data(), at, table.size() * sizeof lie);
  std::memcpy(at, lies.data(), lies.size() * sizeof lie);
  const std::vector<absl::Status> came =
      Move([&] { std::memcpy(at, table.data(), table.size() * sizeof lie); });
  for (const absl::Status& status : came) {
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
  const auto& told = came[static_cast<size_t>(MemberOf(liar))];
  EXPECT_FALSE(told.ok());
  // Its other rank may be the first to miss rows.
  EXPECT_THAT(std::string(told.message()),
              ::testing::AnyOf(HasSubstr("its plan has more tokens for"),
                               HasSubstr("routes for this rank")));
  for (int step = 0; step < 2; ++step) {
    StageDispatch();
    MoveCounted();
    ExpectDispatched();
    EXPECT_EQ(g_bytes.load(), Scattered().second);
  }
}

TEST_P(NcclMembersOn, GatherWithTheBitsOfTheCpuBackendInOneMessagePerRankAndPeer) {
  FormByNccl(GetParam());
  for (int step = 0; step < 2; ++step) {
    for (const bool has_weights : {false, true}) {
      StageCombine(has_weights);
      MoveCounted();
      ExpectCombined(has_weights);
      EXPECT_EQ(g_sends.load(), Gathered(has_weights).first);
      EXPECT_EQ(g_bytes.load(), Gathered(has_weights).second);
    }
  }
}

}  // namespace
}  // namespace epd::cuda
