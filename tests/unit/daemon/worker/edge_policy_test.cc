// Goal: the worker's small policies at the edge: how long to spin, how much to log, what to say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <thread>

#include "daemon/worker/engine/cause_text.h"
#include "daemon/worker/engine/log_limiter.h"
#include "daemon/worker/shell/control_codec.h"
#include "daemon/worker/shell/spin_policy.h"
#include "daemon/worker/shell/thread_slice.h"
#include "daemon/worker/shell/turn_budget.h"
#include "tests/unit/daemon/worker/exchange_harness.h"

namespace epd {
namespace {

using ::testing::HasSubstr;

TEST(SpinTime, IsShortWhereClientsNeedEveryCpu) {
  const absl::Duration asked = absl::Microseconds(100);
  EXPECT_EQ(SpinTime(asked, /*num_cpus=*/8, /*num_sessions=*/4), asked);
  EXPECT_LE(SpinTime(asked, 2, 2), absl::Microseconds(5));
  EXPECT_EQ(SpinTime(absl::ZeroDuration(), 2, 2), absl::ZeroDuration());
}

TEST(LogLimiter, LetsAPeriodsLinesThroughAndCountsTheRest) {
  LogLimiter limiter;
  const absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < LogLimiter::kLinesPerPeriod; ++i) ASSERT_TRUE(limiter.Admit(now));
  EXPECT_FALSE(limiter.Admit(now));
  EXPECT_FALSE(limiter.Admit(now + LogLimiter::kPeriod - absl::Nanoseconds(1)));
  EXPECT_TRUE(limiter.Admit(now + LogLimiter::kPeriod));
  EXPECT_EQ(limiter.TakeDropped(), 2u);
  EXPECT_EQ(limiter.TakeDropped(), 0u);
}

TEST(CauseText, NamesSomeRanksInFullAndTheRestByNumber) {
  ExchangeHarness h;
  const Tenant tenant(h.Start(h.Spec(40)));
  std::vector<Rank> ranks;
  for (uint32_t r = 0; r < 40; ++r) ranks.push_back(Rank(r));
  const std::string text = NameRanks(tenant, ranks, "absent");
  EXPECT_THAT(text, HasSubstr("rank=0 host=host0 pid=100 phase=absent; rank=1"));
  EXPECT_THAT(text, HasSubstr("; and ranks 16-39 phase=absent"));
  EXPECT_LT(text.size(), shm::kMessageBytes / 2);
}

TEST(ControlCodec, StartTenantComesInRankOrderWithItsBases) {
  v1::StartTenant message;
  message.set_group_id(7);
  message.mutable_spec()->set_name("g");
  message.mutable_spec()->set_num_ranks(2);
  message.mutable_spec()->set_num_experts(2);
  message.mutable_spec()->set_max_tokens_per_rank(1);
  message.mutable_spec()->set_recv_capacity_per_rank(1);
  message.mutable_spec()->set_hidden(1);
  message.mutable_spec()->set_max_token_dtype(v1::DTYPE_FLOAT32);
  message.mutable_spec()->set_backend("cpu");
  message.mutable_spec()->mutable_deadlines()->mutable_absent()->set_seconds(3);
  message.add_members()->set_rank(1);
  message.add_members()->set_rank(0);
  v1::StartTenant::Base& base = *message.add_bases();
  base.set_program(std::string(16, 'p'));
  base.set_base(5);
  const absl::StatusOr<TenantStart> start = TenantStartFromProto(message);
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_EQ(start->members[0].rank, Rank(0));
  EXPECT_EQ(start->spec.deadlines.absent, absl::Seconds(3));
  EXPECT_EQ(start->spec.deadlines.undecided, absl::Seconds(30));
  EXPECT_EQ(start->bases[0].base, 5u);
  base.set_program("short");
  EXPECT_EQ(TenantStartFromProto(message).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ControlCodec, SnapshotSaysWhoWaitsForWhom) {
  ExchangeHarness h;
  h.StartTenant(h.Spec(2));
  h.Take(h.Request(0));
  h.Advance(absl::Milliseconds(1500));
  const v1::WorkerSnapshot snapshot = SnapshotToProto(h.exchange.Snapshot(h.now));
  ASSERT_EQ(snapshot.operations_size(), 1);
  EXPECT_EQ(snapshot.operations(0).phase(), "announce");
  EXPECT_EQ(snapshot.operations(0).kind(), "prepare");
  EXPECT_EQ(snapshot.operations(0).waiting_for(0), 1u);
  EXPECT_EQ(snapshot.operations(0).age().seconds(), 1);
  EXPECT_EQ(snapshot.operations(0).age().nanos(), 500'000'000);
  EXPECT_EQ(snapshot.arena_sets(0).session_ids_size(), 2);
  EXPECT_EQ(snapshot.pool_bytes(), kPool);
}

// Streams ring nothing, so a worker with some never sleeps for long; with open operations it first
// does not sleep at all.
TEST(StreamPauseTest, GrowsWithIdlenessUpToAStepsDelay) {
  EXPECT_EQ(StreamPause(true, absl::Milliseconds(1)), absl::ZeroDuration());
  EXPECT_EQ(StreamPause(true, absl::Seconds(1)), absl::Microseconds(50)) << "a rank is late";
  EXPECT_LT(StreamPause(false, absl::Microseconds(80)), absl::Microseconds(11));
  EXPECT_EQ(StreamPause(false, absl::InfiniteDuration()), absl::Microseconds(50));
}

// A device that has finished is noticed within a small part of the time that it took.
TEST(DevicePauseTest, IsASmallPartOfTheTimeThatHasPassed) {
  for (const int us : {0, 20, 200, 600}) {
    EXPECT_EQ(DevicePause(absl::Microseconds(us), 8, 2), absl::ZeroDuration()) << us;
  }
  EXPECT_EQ(DevicePause(absl::Microseconds(768), 8, 2), absl::Microseconds(12));
  EXPECT_EQ(DevicePause(absl::Seconds(1), 8, 2), absl::Microseconds(20));
  EXPECT_EQ(DevicePause(absl::InfiniteDuration(), 8, 2), absl::Microseconds(20));
  EXPECT_EQ(DevicePause(absl::ZeroDuration(), 2, 2), absl::Microseconds(20)) << "cores are short";
}

TEST(TurnBudgetTest, ATurnEndsAfterSoManyOrSoLongAndHasAtLeastOne) {
  const absl::Time now = absl::UnixEpoch();
  const absl::Duration longest = absl::Milliseconds(1);
  TurnBudget many(3, longest, now);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(many.Takes(now)) << i;
  EXPECT_FALSE(many.Takes(now));
  TurnBudget slow(3, longest, now);
  EXPECT_TRUE(slow.Takes(now + longest)) << "the first one, however late";
  EXPECT_FALSE(slow.Takes(now + longest));
  TurnBudget in_time(3, longest, now);
  EXPECT_TRUE(in_time.Takes(now));
  EXPECT_TRUE(in_time.Takes(now + longest - absl::Nanoseconds(1)));
  EXPECT_FALSE(in_time.Takes(now + longest));
}

TEST(WakeInTimeTest, TheThreadsTimersSlipByAMicrosecond) {
  std::thread([] {
    ASSERT_GT(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 1000) << "what the kernel gives";
    WakeInTime();
    EXPECT_EQ(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 1000);
  }).join();
}

}  // namespace
}  // namespace epd
