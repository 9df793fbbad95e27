// Goal: whatever a worker has to tell, each message of it fits into a datagram, and together they tell all of it.
#include "daemon/worker/shell/control_codec.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

constexpr uint64_t kHighest = UINT64_MAX;

// As long as the engine makes them: a name of 256 bytes, the longest words, the highest numbers.
ExchangeSnapshot::OperationLine LongestOperation() {
  return {.operation = kHighest,
          .group = GroupId(kHighest),
          .kind = "dispatch_backward",
          .phase = "admitted",
          .age = absl::Hours(24 * 365),
          .waiting_for = std::vector<Rank>(limits::kServedRanks, Rank(limits::kServedRanks)),
          .region_bytes = kHighest,
          .key = std::string(400, 'x')};
}

TEST(ControlCodecTest, FiguresOfAnySizeComeInMessagesThatFitAndNothingIsLost) {
  ExchangeSnapshot snapshot;
  snapshot.operations.assign(1000, LongestOperation());
  snapshot.tenants.assign(3000, {.group = GroupId(kHighest),
                                 .formation = Formation(kHighest),
                                 .generation = kHighest,
                                 .num_good = kHighest,
                                 .num_failed = kHighest,
                                 .num_failed_calls = kHighest,
                                 .bytes_moved = kHighest,
                                 .ended = true});
  snapshot.sets.assign(100, {.status = {},
                             .groups = std::vector<GroupId>(10'000, GroupId(kHighest)),
                             .sessions = std::vector<SessionId>(10'000, SessionId(kHighest))});
  snapshot.pool_bytes = snapshot.pool_committed_bytes = snapshot.pool_peak_bytes = kHighest;
  v1::WorkerSnapshot whole = SnapshotToProto(snapshot);
  whole.set_request_id(kHighest);
  for (size_t e = 0; e < kMaxRoutesShown; ++e) {
    whole.mutable_tenants(1)->add_expert_routes(kHighest);
  }
  for (int i = 0; i < 2000; ++i) {
    whole.add_traffic()->set_node(std::string(limits::kNameBytes, 'n'));
  }
  const std::vector<v1::FromWorker> parts = SplitSnapshot(whole);
  ASSERT_GT(parts.size(), 4u);
  v1::WorkerSnapshot told;
  for (const v1::FromWorker& part : parts) {
    EXPECT_LE(part.ByteSizeLong(), limits::kDatagramBytes);
    EXPECT_EQ(part.snapshot().request_id(), kHighest);
    EXPECT_EQ(part.snapshot().more(), &part != &parts.back());
    told.MergeFrom(part.snapshot());
  }
  told.clear_more();
  EXPECT_EQ(told.SerializeAsString(), whole.SerializeAsString());
}

TEST(ControlCodecTest, FiguresOfAnIdleWorkerAreOneMessage) {
  const std::vector<v1::FromWorker> parts = SplitSnapshot(SnapshotToProto({}));
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(parts[0].has_snapshot());
  EXPECT_FALSE(parts[0].snapshot().more());
}

TEST(ControlCodecTest, AsMuchOfThePastAsIsShownFitsIntoOneMessage) {
  const ExchangeSnapshot::PastLine longest{
      .rank = Rank(limits::kServedRanks),
      .kind = "dispatch_backward",
      .key = std::string(31, '?') +
             " execution=18446744073709551615 ordinal=4294967295 "
             "occurrence=4294967295",
      .fingerprint = kHighest,
      .phase = "failed in announce",
      .age = absl::InfiniteDuration(),
      .code = absl::StatusCode::kUnauthenticated};
  v1::FromWorker message;
  *message.mutable_past() = PastToProto({kMaxPastShown, longest});
  message.mutable_past()->set_request_id(kHighest);
  EXPECT_LE(message.ByteSizeLong(), limits::kDatagramBytes);
}

TEST(ControlCodecTest, WhatANeighbourSaysComesWholeAndOnlyWithItsDescriptor) {
  NeighbourMessage arena{.worker = 7, .communicator = 5, .epoch = 3};
  arena.arena = {.group_id = 11, .formation = 2, .rank = 6, .bytes = kHighest};
  std::vector<UniqueFd> one(1);
  one[0].reset(dup(STDERR_FILENO));
  const absl::StatusOr<NeighbourMessage> heard =
      NeighbourFromProto(NeighbourToProto(arena), std::move(one));
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->worker, 7u);
  EXPECT_EQ(heard->communicator, 5u);
  EXPECT_EQ(heard->epoch, 3u);
  ASSERT_TRUE(heard->arena.has_value());
  EXPECT_EQ(heard->arena->group_id, 11u);
  EXPECT_EQ(heard->arena->formation, 2u);
  EXPECT_EQ(heard->arena->rank, 6u);
  EXPECT_EQ(heard->arena->bytes, kHighest);
  EXPECT_TRUE(heard->fd.valid());

  NeighbourMessage cannot;
  cannot.problem = "no peer access";
  const absl::StatusOr<NeighbourMessage> bare = NeighbourFromProto(NeighbourToProto(cannot), {});
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_EQ(bare->problem, "no peer access");
  EXPECT_FALSE(bare->arena.has_value());

  for (const v1::NeighbourMessage& bad :
       {v1::NeighbourMessage(), NeighbourToProto(arena), NeighbourToProto(NeighbourMessage())}) {
    const absl::Status refused = NeighbourFromProto(bad, {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("expected 1"));
  }
}

}  // namespace
}  // namespace epd
