// Goal: five operations that are put into streams once, or captured once and replayed a thousand
// times with other data and routes, give what the reference gives; failures between are seen later
// and leave zeros; workers may be replaced, and graphs, sites and groups go in any order.
#include "client/cuda/stream_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kernels/cuda/launch.h"
#include "kernels/plan_checksum.h"
#include "tests/fakes/cuda/host_run.h"
#include "tests/unit/client/cuda/stream_group_fixture.h"

namespace epd::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

INSTANTIATE_TEST_SUITE_P(Executors, StreamGroupTest, kExecutors, NameOf);

TEST_P(StreamGroupTest, OperationsPutIntoStreamsGiveWhatTheReferenceGives) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Refill(seed);
    PutAll();
    CheckOutputs("seed " + std::to_string(seed));
  }
  EXPECT_TRUE(CheckAll().ok());
}

// By the worker's executor four operations have a side of C slots and another of T tokens; where ranks move their rows two
// stage C slots, and the rest is no copy.
TEST_P(StreamGroupTest, CopiesMoveTheRowsThatThereAreAndNotTheRoomForThem) {
  for (uint64_t seed = 1, want = 0; seed <= 5; ++seed) {
    Refill(seed);
    PutAll();
    for (const int r : {0, 1}) {
      const uint64_t slots = reference::Recv(problem_, r).slots.size();
      want += GetParam() == Executor::kWorker ? 4 * (slots + kT) : 2 * slots;
    }
    EXPECT_EQ(node_.num_copied_rows(), want) << "seed " << seed;
  }
  EXPECT_EQ(node_.num_gates_in_slots(), 0u) << "a slot is host memory, and rows are many";
}

TEST_P(StreamGroupTest, CapturedOnceReplayedAThousandTimes) {
  Refill(1);
  Capture();
  EXPECT_EQ(node_.num_moves(), 0) << "a capture runs nothing";
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Refill(seed);
    Replay();
    if (seed % 50 == 1 || seed == 1000) CheckOutputs("seed " + std::to_string(seed));
  }
  EXPECT_EQ(node_.num_moves(), GetParam() == Executor::kWorker ? 5000 : 0);
  EXPECT_TRUE(CheckAll().ok());
}

TEST_P(StreamGroupTest, AnErrorBetweenReplaysIsSeenLaterAndLeavesZeros) {
  Refill(1);
  Capture();
  Replay();
  CheckOutputs("before");
  ranks_[1]->topk.data[0] = 99;
  Replay();
  ExpectZeros("failed");
  Refill(2);
  Replay();
  CheckOutputs("after");
  const Status seen = ranks_[0]->Put();
  EXPECT_EQ(seen.code, Code::kInvalidArgument) << "the next call of a handler";
  EXPECT_THAT(seen.message, HasSubstr("rank=1"));
  EXPECT_EQ(ranks_[1]->group->Check().code, Code::kInvalidArgument) << "or somebody who asks";
  EXPECT_TRUE(CheckAll().ok()) << "once";
}

class WorkerMoves : public StreamGroupTest {};
INSTANTIATE_TEST_SUITE_P(Executors, WorkerMoves, ::testing::Values(Executor::kWorker), NameOf);

TEST_P(WorkerMoves, AMoveThatFailsIsAnErrorOnEveryRankAndLeavesZeros) {
  Refill(1);
  node_.FailMoves(absl::DataLossError("rank 1's stage is damaged"));
  PutAll();
  ExpectZeros("failed");
  for (auto& rank : ranks_) {
    const Status seen = rank->group->Check();
    EXPECT_EQ(seen.code, Code::kDataLoss);
    EXPECT_THAT(seen.message, HasSubstr("rank 1's stage is damaged"));
  }
  node_.FailMoves(absl::OkStatus());
}

// As a worker does that finds the last step of a use that the worker before it had answered.
TEST_P(StreamGroupTest, AWorkerThatDoesNotKnowTheEndOfAGoodUseFailsNothing) {
  Refill(1);
  PutAll();
  CheckOutputs("good");
  int num_pulled = 0;
  node_.slots(0).ForEachUsedSlot([&](uint32_t i) {
    if (node_.slots(0).slot(i).request.step != shm::Step::kStreamPulled) return;
    node_.slots(0).slot(i).failed = static_cast<uint32_t>(Code::kAborted);
    ++num_pulled;
  });
  EXPECT_EQ(num_pulled, 5);
  EXPECT_TRUE(CheckAll().ok());
  node_.slots(0).ForEachUsedSlot([&](uint32_t i) { EXPECT_EQ(node_.slots(0).slot(i).failed, 0u); });
}

TEST_P(StreamGroupTest, ReplaysSurviveAReplacedWorker) {
  Refill(1);
  Capture();
  Replay();
  for (int n = 0; n < 3; ++n) {
    node_.ReplaceWorker();
    // As long as the staging is not there, everything fails and nothing hangs.
    Replay();
    Replay();
    ExpectZeros("without staging");
    EXPECT_EQ(CheckAll().code, Code::kAborted);
    node_.FinishReplacement();
    Refill(static_cast<uint64_t>(n) + 10);
    Replay();
    CheckOutputs("replacement " + std::to_string(n));
  }
}

TEST_P(StreamGroupTest, WhatNobodyAnswersAnyMoreEndsByItself) {
  Refill(1);
  Capture();
  Replay();
  node_.EndDaemon();
  for (int n = 0; n < 3; ++n) Replay();
  ExpectZeros("the daemon is gone");
  EXPECT_EQ(CheckAll().code, Code::kUnavailable);
  EXPECT_EQ(ranks_[0]->Put().code, Code::kUnavailable);
}

TEST_P(StreamGroupTest, GraphsOutliveTheGroupAndTheGroupItsSites) {
  Refill(1);
  Capture();
  ranks_[0]->group->Close();
  ranks_[1]->group->Close();
  Replay();
  CheckOutputs("closed, and still a member");
  EXPECT_EQ(ranks_[0]->Put().code, Code::kFailedPrecondition);
  node_.EndDaemon();
  Replay();
  ExpectZeros("the graphs are all that is left");
  for (auto& rank : ranks_) rank->sites.clear();
}

TEST_P(StreamGroupTest, SitesMayGoFirst) {
  Refill(1);
  PutAll();
  for (auto& rank : ranks_) rank->sites.clear();
  EXPECT_TRUE(CheckAll().ok());
}

TEST_P(StreamGroupTest, BadExpertsFailOnEveryRank) {
  Refill(1);
  ranks_[0]->topk.data[3] = 99;
  PutAll();
  ExpectZeros("bad");
  for (auto& rank : ranks_) {
    const Status status = rank->group->Check();
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_THAT(status.message, HasSubstr("at index 3"));
  }
}

TEST_P(StreamGroupTest, MissingAndMisalignedBuffersAreNamed) {
  StreamBuffers buffers = ranks_[0]->BuffersOf(1);
  buffers.rows = static_cast<const char*>(buffers.rows) + 4;
  Status status = ranks_[0]->group->Put(*ranks_[0]->sites[1], buffers, node_.stream(0));
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_THAT(status.message, HasSubstr("rows"));
  buffers = ranks_[0]->BuffersOf(0);
  buffers.total_recv = nullptr;
  status = ranks_[0]->group->Put(*ranks_[0]->sites[0], buffers, node_.stream(0));
  EXPECT_THAT(status.message, HasSubstr("total_recv"));
}

TEST_P(StreamGroupTest, ADriverThatRefusesIsNamed) {
  node_.driver().Fail("cuStreamBatchMemOp", 801);
  Refill(1);
  const Status status = ranks_[0]->Put();
  EXPECT_EQ(status.code, Code::kInternal);
  EXPECT_THAT(status.message, HasSubstr("cuStreamBatchMemOp"));
}

// What a rank's kernels find before they move anything fails the use on every rank.
class RanksMove : public StreamGroupTest {
 protected:
  // The prepare, `harm`, and the dispatch behind it, on every rank.
  void DispatchAfter(const std::function<void()>& harm) {
    Refill(1);
    PutSite(0);
    harm();
    PutSite(1);
    for (auto& rank : ranks_) {
      EXPECT_THAT(rank->recv.Copy(), Each(0.0f));
      EXPECT_THAT(rank->recv_weights.Copy(), Each(0.0f));
    }
  }
  void PutSite(size_t site) {
    for (auto& rank : ranks_) {
      const Status status =
          rank->group->Put(*rank->sites[site], rank->BuffersOf(site), node_.stream(rank->rank_));
      EXPECT_TRUE(status.ok()) << status.message;
    }
    ASSERT_TRUE(node_.AwaitStreams());
  }
  PlanHeader& HeaderOf(uint32_t rank) {
    return *reinterpret_cast<PlanHeader*>(ranks_[rank]->plan.data);
  }
  // Runs `name` as it is, with `act` before and behind it.
  template <typename Args>
  void Around(const char* name, std::function<void(const Args&, bool begins)> act) {
    for (int i = 0; i < cuda::NumKernels(); ++i) {
      const cuda::KernelShape& kernel = cuda::KernelAt(i);
      if (std::string(kernel.name) != name) continue;
      const auto run = [&kernel, act](void** arguments) {
        const auto& args = *static_cast<const Args*>(arguments[0]);
        act(args, true);
        EXPECT_TRUE(cuda::RunOnHost(kernel, arguments[0], cuda::HostOrder::kForward));
        act(args, false);
      };
      node_.driver().SetKernel(kernel.name, run, kernel.args_bytes);
    }
  }
  void ExpectAll(Code code, const std::string& text) {
    for (auto& rank : ranks_) {
      const Status status = rank->group->Check();
      EXPECT_EQ(status.code, code) << status.message;
      EXPECT_THAT(status.message, HasSubstr("rank=1 host=h"));
      EXPECT_THAT(status.message, HasSubstr(text));
    }
    Refill(2);
    PutAll();
    CheckOutputs("after");
  }
};
INSTANTIATE_TEST_SUITE_P(Executors, RanksMove, ::testing::Values(Executor::kClient), NameOf);

TEST_P(RanksMove, ADamagedPlanIsNamedOnEveryRank) {
  DispatchAfter([this] { ranks_[1]->plan.data[PlanTableOffset(kR, 4) + 4] ^= 1; });
  ExpectAll(Code::kDataLoss, "checksum of the routing plan");
}

TEST_P(RanksMove, APlanOfAnotherGroupIsNamedOnEveryRank) {
  DispatchAfter([this] {
    PlanHeader& header = HeaderOf(1);
    header.group_id = 5;
    header.checksum = PlanChecksum(
        &header, PlanUsedBytes(RankProgram::Spec(), header.num_tokens, header.num_routes));
  });
  ExpectAll(
      Code::kInvalidArgument,
      "got 0x0000000000000005, expected 0x000000000000004d; handle_mem belongs to another group");
}

// Another process of the tenant may write there at any time.
TEST_P(RanksMove, WhatAPeersStageHoldsIsItsReadersErrorAloneAndLeavesZeros) {
  PlanHeader* stage = nullptr;  // Of rank 1, as itself has it mapped: others cannot write there.
  Around<cuda::StageRowsArgs>("epd_stage_rows_16", [&](const auto& args, bool) {
    if (reinterpret_cast<const PlanHeader*>(args.plan)->rank == 1) stage = args.stage.header;
  });
  Around<cuda::ReadRowsArgs>("epd_read_rows_16", [&](const auto& args, bool begins) {
    if (args.index.rank == 0) stage->plan_id += begins ? 1 : -1;
  });
  Refill(1);
  PutSite(0);
  PutSite(1);
  const Status found = ranks_[0]->group->Check();
  EXPECT_EQ(found.code, Code::kDataLoss);
  EXPECT_THAT(found.message,
              AllOf(HasSubstr("group=g epoch=0 rank=0"), HasSubstr("what rank 1 has staged"),
                    HasSubstr("plan id of a stage")));
  EXPECT_TRUE(ranks_[1]->group->Check().ok());
  EXPECT_TRUE(ranks_[0]->group->Check().ok()) << "it is told once";
  EXPECT_THAT(ranks_[0]->recv.Copy(), Each(0.0f));
  EXPECT_THAT(ranks_[0]->recv_weights.Copy(), Each(0.0f));
  EXPECT_THAT(ranks_[1]->recv.Copy(), Not(Each(0.0f)));
}

// Its peers' stages may be another operation's by then.
TEST_P(RanksMove, ASessionThatEndsWhileItReadsLeavesZeros) {
  std::atomic<uint32_t>& ended = node_.slots(0).header().ended;
  Around<cuda::ReadRowsArgs>("epd_read_rows_16", [&](const auto& args, bool) {
    if (args.index.rank == 0) ended = 1;
  });
  Refill(1);
  PutSite(0);
  PutSite(1);
  EXPECT_THAT(ranks_[0]->recv.Copy(), Each(0.0f));
  EXPECT_THAT(ranks_[1]->recv.Copy(), Not(Each(0.0f)));
  ended = 0;
}

// Some replays need more slots than the calls have, others do not.
constexpr uint32_t kFewSlots = 14;
class TooManyRows : public StreamGroupTest {
 protected:
  explicit TooManyRows(bool drop = false)
      : StreamGroupTest({.capacity = kFewSlots, .drop = drop}) {}

  // Slots that a rank needs by the routes of the last Refill.
  size_t DemandOf(uint32_t rank) const {
    return reference::Recv(problem_, static_cast<int>(rank)).slots.size();
  }
  std::string WhoOverflows() const {
    const uint32_t worst = DemandOf(1) > DemandOf(0) ? 1 : 0;
    return "rank=" + std::to_string(worst) + " host=h";
  }
  bool AnyOverflows() const { return std::max(DemandOf(0), DemandOf(1)) > kFewSlots; }
};
INSTANTIATE_TEST_SUITE_P(Executors, TooManyRows, kExecutors, NameOf);

TEST_P(TooManyRows, FailThatReplayOnEveryRankAndNoOther) {
  Refill(1);
  Capture();
  int num_over = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Refill(seed);
    Replay();
    const std::string when = "seed " + std::to_string(seed);
    if (!AnyOverflows()) {
      CheckOutputs(when);
      EXPECT_TRUE(CheckAll().ok()) << when;
      continue;
    }
    ++num_over;
    ExpectZeros(when);
    for (auto& rank : ranks_) {
      const Status status = rank->group->Check();
      EXPECT_EQ(status.code, Code::kResourceExhausted) << when << ": " << status.message;
      EXPECT_THAT(status.message, HasSubstr(WhoOverflows())) << when;
      const size_t demand = std::max(DemandOf(0), DemandOf(1));
      EXPECT_THAT(status.message, HasSubstr(std::to_string(demand) + " slots, its capacity is 14"));
    }
  }
  EXPECT_GT(num_over, 20);
  EXPECT_LT(num_over, 180);
}

class DroppedRows : public TooManyRows {
 protected:
  DroppedRows() : TooManyRows(true) {}
};
INSTANTIATE_TEST_SUITE_P(Executors, DroppedRows, kExecutors, NameOf);

TEST_P(DroppedRows, AreNoErrorAndTheOthersAreThere) {
  Refill(1);
  Capture();
  int num_over = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Refill(seed);
    Replay();
    CheckOutputs("seed " + std::to_string(seed));
    num_over += AnyOverflows() ? 1 : 0;
  }
  EXPECT_GT(num_over, 20);
  EXPECT_TRUE(CheckAll().ok());
}

class WithoutTokens : public StreamGroupTest {
 protected:
  WithoutTokens() : StreamGroupTest({.tokens = 0}) {}
};

INSTANTIATE_TEST_SUITE_P(Executors, WithoutTokens, kExecutors, NameOf);

TEST_P(WithoutTokens, NothingMovesAndEverythingEnds) {
  Refill(1);
  PutAll();
  for (auto& rank : ranks_) {
    EXPECT_EQ(*rank->total.data, 0);
    EXPECT_THAT(rank->recv.Copy(), Each(0.0f));
  }
  EXPECT_TRUE(CheckAll().ok());
}

}  // namespace
}  // namespace epd::client
