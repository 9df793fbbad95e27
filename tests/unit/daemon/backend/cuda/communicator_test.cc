// Goal: communicators form without blocking, move exact sizes, and after a loss are aborted by every
// survivor and destroyed by none; whichever call fails, the next epoch forms.
#include "daemon/backend/cuda/members/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/cuda/fake_nccl.h"

namespace epd::cuda {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 3;
constexpr absl::Duration kLimit = absl::Seconds(30);

class Communicators : public ::testing::Test {
 protected:
  // All ranks of one epoch; the id's number is the epoch's.
  using Epoch = std::vector<std::unique_ptr<Communicator>>;

  Epoch Make(uint64_t epoch) {
    Epoch made;
    for (int rank = 0; rank < kRanks; ++rank) {
      made.push_back(
          std::make_unique<Communicator>(nccl.table(), CommunicatorOptions{.group_id = 7,
                                                                           .epoch = epoch,
                                                                           .num_ranks = kRanks,
                                                                           .rank = rank,
                                                                           .max_ctas = 4,
                                                                           .form_limit = kLimit,
                                                                           .end_limit = kLimit}));
    }
    return made;
  }
  void Begin(Epoch& ranks, uint64_t epoch) {
    for (auto& rank : ranks) rank->Begin(FakeNccl::IdOf(epoch), now);
  }
  void Poll(Epoch& ranks) {
    for (auto& rank : ranks) Poll(*rank);
  }
  // Until what came of its calls has been taken.
  void Poll(Communicator& rank) {
    for (int i = 0; i < 10'000; ++i) {
      rank.Poll(now);
      if (!rank.calling()) return;
      usleep(1000);
    }
    FAIL() << "a call into NCCL has not come back in 10 s";
  }
  Epoch Formed(uint64_t epoch) {
    Epoch ranks = Make(epoch);
    Begin(ranks, epoch);
    Poll(ranks);
    Poll(ranks);
    EXPECT_THAT(StatesOf(ranks), ElementsAre("READY", "READY", "READY"));
    return ranks;
  }
  static std::vector<std::string> StatesOf(const Epoch& ranks) {
    std::vector<std::string> states;
    for (const auto& rank : ranks) states.emplace_back(Name(rank->state()));
    return states;
  }
  // What `rank` exchanges with all others, `bytes` each way.
  static std::vector<PeerBytes> WithAll(int rank, uint64_t bytes) {
    static char memory[64];
    std::vector<PeerBytes> peers;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) peers.push_back({peer, memory, bytes, memory, bytes});
    }
    return peers;
  }

  FakeNccl nccl;
  absl::Time now = absl::UnixEpoch();
};

TEST_F(Communicators, FormOnceAllRanksAreThereAndSayNothingBefore) {
  Epoch ranks = Make(1);
  ranks[0]->Begin(FakeNccl::IdOf(1), now);
  ranks[1]->Begin(FakeNccl::IdOf(1), now);
  Poll(ranks);
  EXPECT_THAT(StatesOf(ranks), ElementsAre("FORMING", "FORMING", "NONE"));
  EXPECT_EQ(ranks[0]->next_deadline(), now + kLimit);
  ranks[2]->Begin(FakeNccl::IdOf(1), now);
  Poll(ranks);
  Poll(ranks);
  EXPECT_THAT(StatesOf(ranks), ElementsAre("READY", "READY", "READY"));
  EXPECT_EQ(ranks[0]->next_deadline(), absl::InfiniteFuture());
}

TEST_F(Communicators, AMissingRankIsADeadlineAndNobodyStays) {
  Epoch ranks = Make(1);
  ranks[0]->Begin(FakeNccl::IdOf(1), now);
  Poll(*ranks[0]);
  now += kLimit;
  Poll(*ranks[0]);
  EXPECT_EQ(ranks[0]->state(), CommState::kGone);
  EXPECT_EQ(ranks[0]->cause().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(ranks[0]->cause().message()),
              HasSubstr("group_id=7 epoch=1 rank=0: not all of 3 ranks entered"));
  EXPECT_EQ(nccl.num_open(), 0);
}

TEST_F(Communicators, MoveExactSizesInOneGroupAndLeaveOutWhatHasNone) {
  Epoch ranks = Formed(1);
  std::vector<PeerBytes> first = WithAll(0, 16);
  first[1].send_bytes = 0;  // To rank 2 nothing, from it 16.
  std::vector<PeerBytes> third = WithAll(2, 16);
  third[0].receive_bytes = 0;
  EXPECT_TRUE(ranks[0]->Issue(first, nullptr, now).ok());
  EXPECT_TRUE(ranks[1]->Issue(WithAll(1, 16), nullptr, now).ok());
  EXPECT_TRUE(ranks[2]->Issue(third, nullptr, now).ok());
  EXPECT_EQ(nccl.PairUp(), "");
  EXPECT_EQ(nccl.CountCalls("ncclSend"), 5);
  EXPECT_EQ(nccl.CountCalls("ncclRecv"), 5);
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

TEST_F(Communicators, EndInOrderWhenNothingIsOpenAndNobodyIsLost) {
  Epoch ranks = Formed(1);
  ranks[0]->Release(now);
  Poll(ranks);
  EXPECT_EQ(ranks[0]->state(), CommState::kEnding) << "until the others release, too";
  ranks[1]->Release(now);
  ranks[2]->Release(now);
  Poll(ranks);
  Poll(ranks);
  EXPECT_THAT(StatesOf(ranks), ElementsAre("GONE", "GONE", "GONE"));
  EXPECT_EQ(nccl.CountCalls("ncclCommDestroy"), 3);
  EXPECT_EQ(nccl.CountCalls("ncclCommAbort"), 0);
  EXPECT_TRUE(ranks[0]->cause().ok());
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

TEST_F(Communicators, ALossIsAbortedByEverySurvivorAndTheNextEpochForms) {
  Epoch ranks = Formed(1);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(ranks[rank]->Issue(WithAll(rank, 16), nullptr, now).ok());
  }
  nccl.Kill(1, 2);
  for (int rank : {0, 1}) ranks[rank]->PeerLost("rank=2 on node b", now);
  for (int rank : {0, 1}) Poll(*ranks[rank]);
  EXPECT_THAT(nccl.SurvivorsThatDidNotAbort(1), IsEmpty());
  EXPECT_EQ(nccl.CountCalls("ncclCommDestroy") + nccl.CountCalls("ncclCommFinalize"), 0);
  EXPECT_THAT(std::string(ranks[0]->cause().message()),
              HasSubstr("rank=2 on node b is lost; the group forms again"));
  EXPECT_EQ(ranks[0]->Issue(WithAll(0, 16), nullptr, now).code(),
            absl::StatusCode::kFailedPrecondition);
  const Epoch again = Formed(2);
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

TEST_F(Communicators, ALossWhileItEndsIsAbortedToo) {
  Epoch ranks = Formed(1);
  for (auto& rank : ranks) rank->Release(now);
  nccl.Kill(1, 2);
  for (int rank : {0, 1}) ranks[rank]->PeerLost("rank=2", now);
  for (int rank : {0, 1}) Poll(*ranks[rank]);
  EXPECT_THAT(nccl.SurvivorsThatDidNotAbort(1), IsEmpty());
  EXPECT_EQ(nccl.CountCalls("ncclCommDestroy"), 0);
}

TEST_F(Communicators, AnEndThatAPeerDoesNotJoinIsCutOffInTime) {
  Epoch ranks = Formed(1);
  ranks[0]->Release(now);
  now += kLimit;
  Poll(*ranks[0]);
  EXPECT_EQ(ranks[0]->state(), CommState::kGone);
  EXPECT_THAT(std::string(ranks[0]->cause().message()), HasSubstr("left the communicator in time"));
}

TEST_F(Communicators, AnAsynchronousErrorIsAbortedWithItsText) {
  Epoch ranks = Formed(1);
  nccl.Fail("ncclCommGetAsyncError", kNcclRemoteError - 1);
  Poll(*ranks[1]);
  EXPECT_EQ(ranks[1]->state(), CommState::kGone);
  EXPECT_THAT(std::string(ranks[1]->cause().message()), HasSubstr("(5)"));
}

TEST_F(Communicators, AnErrorOfAnotherRankWaitsForWhoNamesIt) {
  Epoch ranks = Formed(1);
  for (int rank : {0, 1}) {
    nccl.Fail("ncclCommGetAsyncError", kNcclRemoteError);
    ranks[rank]->Poll(now);
    EXPECT_EQ(ranks[rank]->state(), CommState::kReady);
  }
  EXPECT_LE(ranks[0]->next_deadline(), now + absl::Seconds(1)) << "somebody has to look again";
  ranks[0]->PeerLost("rank=2", now);
  Poll(*ranks[0]);
  EXPECT_THAT(std::string(ranks[0]->cause().message()), HasSubstr("rank=2 is lost"));

  now += absl::Seconds(1);
  nccl.Fail("ncclCommGetAsyncError", kNcclRemoteError);
  Poll(*ranks[1]);
  EXPECT_EQ(ranks[1]->state(), CommState::kGone) << "nobody does";
  EXPECT_THAT(std::string(ranks[1]->cause().message()), HasSubstr("remote process exited (6)"));
}

TEST_F(Communicators, AnOperationThatDoesNotCompleteIsAborted) {
  Epoch ranks = Formed(1);
  ASSERT_TRUE(ranks[0]->Issue(WithAll(0, 16), nullptr, now).ok());
  ranks[0]->OperationLate(now);
  Poll(*ranks[0]);
  EXPECT_EQ(ranks[0]->state(), CommState::kGone);
  EXPECT_EQ(ranks[0]->cause().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(Communicators, ReleasedWithAnOpenOperationIsAborted) {
  Epoch ranks = Formed(1);
  ASSERT_TRUE(ranks[0]->Issue(WithAll(0, 16), nullptr, now).ok());
  ranks[0]->Release(now);
  Poll(*ranks[0]);
  EXPECT_EQ(nccl.CountCalls("ncclCommAbort"), 1);
  ASSERT_TRUE(ranks[1]->Issue(WithAll(1, 16), nullptr, now).ok());
  ranks[1]->Completed();
  ranks[1]->Release(now);
  Poll(*ranks[1]);
  EXPECT_EQ(nccl.CountCalls("ncclCommAbort"), 1);
}

// Whichever call fails, and when: the group is closed, nothing stays open, and the next epoch forms.
TEST_F(Communicators, EachCallMayFailAndTheNextEpochForms) {
  uint64_t epoch = 0;
  int num_failed = 0;
  for (const char* call :
       {"ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart", "ncclSend", "ncclRecv",
        "ncclGroupEnd", "ncclCommFinalize", "ncclCommDestroy"}) {
    ++epoch;
    nccl.Fail(call, kNcclSystemError, /*skip=*/1);
    {
      Epoch ranks = Make(epoch);
      Begin(ranks, epoch);
      Poll(ranks);
      Poll(ranks);
      for (int rank = 0; rank < kRanks; ++rank) {
        if (ranks[rank]->Issue(WithAll(rank, 16), nullptr, now).ok()) ranks[rank]->Completed();
      }
      for (auto& rank : ranks) rank->Release(now);
      Poll(ranks);
      Poll(ranks);
      now += kLimit;
      Poll(ranks);
      Poll(ranks);
      for (const auto& rank : ranks) {
        num_failed += !rank->cause().ok();
        EXPECT_EQ(rank->state(), CommState::kGone) << call;
      }
    }
    EXPECT_EQ(nccl.num_open(), 0) << call;
    const Epoch again = Formed(++epoch);
  }
  EXPECT_GE(num_failed, 8);
}

// ---- calls that do not come back ----

TEST_F(Communicators, AnAbortThatBlocksHoldsNobodyUpAndTheNextEpochForms) {
  Epoch ranks = Formed(1);
  ASSERT_TRUE(ranks[0]->Issue(WithAll(0, 16), nullptr, now).ok());
  nccl.Hold("ncclCommAbort");
  for (auto& rank : ranks) rank->PeerLost("rank=2", now);
  for (auto& rank : ranks) rank->Poll(now);
  EXPECT_THAT(StatesOf(ranks), ElementsAre("ABORTING", "ABORTING", "ABORTING"));
  EXPECT_TRUE(ranks[0]->launching()) << "nothing else may be put into its stream";
  const Epoch again = Formed(2);
  EXPECT_TRUE(ranks[0]->broken().ok());
  nccl.LetGo();
  Poll(ranks);
  EXPECT_THAT(StatesOf(ranks), ElementsAre("GONE", "GONE", "GONE"));
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

TEST_F(Communicators, AnAbortThatNeverComesBackAsksForAnotherWorker) {
  Epoch ranks = Formed(1);
  nccl.Hold("ncclCommAbort");
  ranks[0]->PeerLost("rank=2", now);
  now += kLimit;
  ranks[0]->Poll(now);
  EXPECT_EQ(ranks[0]->broken().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(ranks[0]->broken().message()),
              HasSubstr("group_id=7 epoch=1 rank=0: NCCL has not ended the communicator within"));
  nccl.LetGo();
  Poll(ranks);
}

TEST_F(Communicators, AFirstInitialisationThatBlocksIsGivenUpInTimeAndAbortedOnceItIsBack) {
  Epoch ranks = Make(1);
  nccl.Hold("ncclCommInitRankConfig");
  ranks[0]->Begin(FakeNccl::IdOf(1), now);
  ranks[0]->Poll(now);
  EXPECT_EQ(ranks[0]->state(), CommState::kForming);
  now += kLimit;
  ranks[0]->Poll(now);
  EXPECT_EQ(ranks[0]->state(), CommState::kAborting);
  EXPECT_EQ(ranks[0]->cause().code(), absl::StatusCode::kDeadlineExceeded);
  nccl.LetGo();
  Poll(*ranks[0]);
  EXPECT_EQ(ranks[0]->state(), CommState::kGone);
  EXPECT_EQ(nccl.num_open(), 0);
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

TEST_F(Communicators, OneThatGoesWhileItIsBeingInitialisedLeavesNothing) {
  nccl.Hold("ncclCommInitRankConfig");
  {
    Epoch ranks = Make(1);
    ranks[0]->Begin(FakeNccl::IdOf(1), now);
    for (int i = 0; i < 10'000 && nccl.num_held() == 0; ++i) usleep(1000);
    ASSERT_EQ(nccl.num_held(), 1);
  }
  EXPECT_EQ(nccl.CountCalls("ncclCommAbort"), 0);
  nccl.LetGo();
  for (int i = 0; i < 10'000 && nccl.CountCalls("ncclCommAbort") == 0; ++i) usleep(1000);
  EXPECT_EQ(nccl.num_open(), 0);
}

TEST_F(Communicators, NcclIsCalledWithTheDeviceCurrentOrNotAtAll) {
  CommunicatorOptions options = {.num_ranks = 1,
                                 .enter_device = [] { return absl::InternalError("no context"); }};
  Communicator one(nccl.table(), options);
  one.Begin(FakeNccl::IdOf(1), now);
  Poll(one);
  EXPECT_EQ(one.state(), CommState::kGone);
  EXPECT_THAT(std::string(one.cause().message()), HasSubstr("no context"));
  EXPECT_THAT(nccl.calls(), IsEmpty());
}

// ---- the fake notices what is forbidden ----

TEST_F(Communicators, TheFakeSeesOneThatIsDestroyedWithADeadPeer) {
  NcclComm comms[2] = {};
  NcclConfig config;
  for (int rank : {0, 1}) {
    nccl.table().init_rank(&comms[rank], 2, FakeNccl::IdOf(9), rank, &config);
  }
  nccl.Kill(9, 1);
  nccl.table().finalize(comms[0]);
  nccl.table().destroy(comms[0]);
  EXPECT_THAT(nccl.violations(), ElementsAre("ncclCommFinalize of id 9 rank 0: rank 1 is dead",
                                             "ncclCommDestroy of id 9 rank 0: rank 1 is dead"));
}

TEST_F(Communicators, TheFakeSeesASurvivorThatDoesNotAbort) {
  Epoch ranks = Formed(1);
  nccl.Kill(1, 2);
  ranks[0]->PeerLost("rank=2", now);
  Poll(*ranks[0]);
  EXPECT_THAT(nccl.SurvivorsThatDidNotAbort(1), ElementsAre(1));
}

TEST_F(Communicators, TheFakeSeesATransferOutsideOfAGroupAndOneWithoutBytes) {
  NcclComm comm = nullptr;
  NcclConfig config;
  nccl.table().init_rank(&comm, 1, FakeNccl::IdOf(9), 0, &config);
  nccl.table().send(nullptr, 0, kNcclInt8, 0, comm, nullptr);
  EXPECT_THAT(nccl.violations(), ElementsAre("ncclSend of id 9 rank 0: outside of a group",
                                             "ncclSend of id 9 rank 0: no bytes"));
}

TEST_F(Communicators, TheFakeSeesOneThatIsUsedAfterItsAbort) {
  NcclComm comm = nullptr;
  NcclConfig config;
  nccl.table().init_rank(&comm, 1, FakeNccl::IdOf(9), 0, &config);
  nccl.table().abort(comm);
  nccl.table().destroy(comm);
  EXPECT_THAT(nccl.violations(), Contains("ncclCommDestroy of id 9 rank 0: it was aborted"));
}

TEST_F(Communicators, TheFakeSeesABlockingOne) {
  NcclComm comm = nullptr;
  NcclConfig config;
  config.blocking = 1;
  nccl.table().init_rank(&comm, 1, FakeNccl::IdOf(9), 0, &config);
  EXPECT_THAT(nccl.violations(), ElementsAre("ncclCommInitRankConfig of id 9 rank 0: it blocks"));
}

}  // namespace
}  // namespace epd::cuda
