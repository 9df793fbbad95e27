// Goal: workers of several nodes move a group's rows with the bits that the CPU backend gives, out of each other's memory within
// a node whose devices can read each other's and by NCCL for all other pairs, of which no byte goes that is not for another
// node; what one worker cannot read, has not said or lies about is named, and nobody else waits for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "daemon/backend/cuda/members/region_board.h"
#include "tests/unit/daemon/backend/cuda/nccl_members_harness.h"

namespace epd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Status kGood = absl::OkStatus();

class MixedMembers : public SendingMembers {
 protected:
  bool Sends(int from, int to) const override {
    const auto a = static_cast<size_t>(from);
    const auto b = static_cast<size_t>(to);
    return a != b && (!OnOneNode(a, b) || node_of(a) == apart_);
  }
  int node_of(size_t worker) const { return node_.node_of[worker]; }
  RowLink LinkOf(size_t worker) const {
    return workers_[worker].backend->LinkOf(kCommunicator, kTestIds.epoch);
  }
  absl::Status EnteredOf(size_t worker) const {
    return workers_[worker].backend->Entered(kCommunicator, kTestIds.epoch);
  }
  // Until the threads that call NCCL have been there.
  template <typename Condition>
  void RoundsUntil(const Condition& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!condition() && absl::Now() < deadline) {
      Round(ended_);
      std::this_thread::yield();
    }
    EXPECT_TRUE(condition());
  }
  // All that are there prepare what is staged; then those of `placed` have their turn.
  void PlaceOn(const std::vector<size_t>& placed) {
    const MoveId id = next_++;
    ended_.assign(workers_.size(), std::nullopt);
    for (Worker& worker : workers_) {
      if (!worker.lost) worker.backend->StartMove(id, *worker.arenas, group_, worker.job, now_);
    }
    for (int i = 0; i < 5; ++i) Round(ended_);
    for (Worker& worker : workers_) {
      if (worker.lost) continue;
      EXPECT_EQ(worker.backend->TakePrepared().size(), 1u);
    }
    for (const size_t worker : placed) {
      workers_[worker].backend->Issue(
          {.id = id,
           .place = place_,
           .recv_capacity = std::vector<uint64_t>(num_ranks(), kCapacity)},
          now_);
    }
    for (int i = 0; i < 5; ++i) Round(ended_);
  }

  void MovePrepare() {
    StagePrepare();
    MoveCounted();
    ExpectPrepared();
    int sends = 0;
    for (size_t r = 0; r < num_ranks(); ++r) {
      for (int m = 0; m < static_cast<int>(workers_.size()); ++m) sends += Sends(MemberOf(r), m);
    }
    EXPECT_EQ(g_sends.load(), sends);
  }
  void MoveDispatch() {
    StageDispatch();
    MoveCounted();
    ExpectDispatched();
    EXPECT_EQ(std::pair(g_sends.load(), g_bytes.load()), Scattered());
  }
  void MoveCombine(bool has_weights) {
    StageCombine(has_weights);
    MoveCounted();
    ExpectCombined(has_weights);
    EXPECT_EQ(std::pair(g_sends.load(), g_bytes.load()), Gathered(has_weights));
  }

  std::vector<std::optional<absl::Status>> ended_ =
      std::vector<std::optional<absl::Status>>(8);  // By worker.
  int apart_ = -1;  // The node whose members send, to each other as well.
};

const Node kTwoOfTwo = OneRankEach({0, 1, 2, 3}, {0, 0, 1, 1});
const Node kTwoOfFour = OneRankEach({0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 0, 1, 1, 1, 1});

class MixedMembersOn : public MixedMembers, public ::testing::WithParamInterface<Node> {};
INSTANTIATE_TEST_SUITE_P(Nodes, MixedMembersOn,
                         ::testing::Values(kTwoOfTwo, kTwoOfFour, OneRankEach({3, 1, 6}, {0, 0, 1}),
                                           OneRankEach({0, 1, 2, 3, 4, 5}, {0, 1, 2, 0, 1, 2}),
                                           Node{.devices = {0, 1, 2, 3},
                                                .member_of_rank = {0, 1, 0, 2, 3, 3, 1, 2},
                                                .node_of = {0, 1, 0, 1}}));

TEST_P(MixedMembersOn, DoEveryOperationWithTheBitsOfTheCpuBackendAndSendOnlyBetweenNodes) {
  FormByNccl(GetParam());
  MovePrepare();
  // Twice: nothing is left of the first time, and the sizes are known.
  for (int step = 0; step < 2; ++step) {
    MoveDispatch();
    MoveCombine(false);
    MoveCombine(true);
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    bool alone = true;
    for (size_t other = 0; other < workers_.size(); ++other) {
      alone = alone && (other == i || !OnOneNode(i, other));
    }
    EXPECT_EQ(LinkOf(i).name, alone ? "nccl" : "peer_memory_and_nccl");
    EXPECT_EQ(LinkOf(i).why, "");
    if (alone) continue;
    EXPECT_THAT(workers_[i].notes, ElementsAre(HasSubstr("directly between the node's devices, and "
                                                         "by NCCL between nodes")));
  }
}

TEST_P(MixedMembersOn, ScatterWithTheSameBitsWhereTokensAreNotTold) {
  tells_tokens_ = false;
  FormByNccl(GetParam());
  StageDispatch();
  MoveCounted();
  ExpectDispatched();
  EXPECT_EQ(g_sends.load(), Scattered().first);
}

// One launch more of a dispatch than by NCCL alone, which reads rows; as many of a combine.
TEST_P(MixedMembersOn, PutALaunchOfEachStepIntoTheirStreams) {
  FormByNccl(GetParam());
  MoveDispatch();
  int launches = driver_->CountCalls("cuLaunchKernel");
  MoveDispatch();
  const auto put = [&] { return driver_->CountCalls("cuLaunchKernel") - launches; };
  int reading = 0;
  for (size_t i = 0; i < workers_.size(); ++i) {
    reading += LinkOf(i).name == "peer_memory_and_nccl" ? 1 : 0;
  }
  const auto workers = static_cast<int>(workers_.size());
  EXPECT_EQ(put(), workers * (3 + 5 + 5 + 1) + reading);
  MoveCombine(true);
  launches = driver_->CountCalls("cuLaunchKernel");
  MoveCombine(true);
  EXPECT_EQ(put(), workers * (3 + 4 + 1));
}

// Each node for itself: the other one's devices read each other's memory all the same.
TEST_F(MixedMembers, ANodeWithAPairApartSendsWithinItAndTheOtherOneReads) {
  FakeMachine machine;
  machine.no_peer_access = {{3, 2}};
  apart_ = 1;
  FormByNccl(kTwoOfTwo, machine);
  MovePrepare();
  MoveDispatch();
  MoveCombine(true);
  for (const size_t reads : {0, 1}) EXPECT_EQ(LinkOf(reads).name, "peer_memory_and_nccl");
  for (const size_t sends : {2, 3}) {
    EXPECT_EQ(LinkOf(sends).name, "nccl");
    EXPECT_EQ(LinkOf(sends).why, "cuda:3 has no peer access to cuda:2");
    EXPECT_THAT(workers_[sends].notes,
                ElementsAre(AllOf(HasSubstr("NCCL also between the node's devices"),
                                  HasSubstr("cuda:3 has no peer access to cuda:2"))));
  }
}

TEST_F(MixedMembers, NeedNcclAlsoWhereTheDevicesOfEachNodeReadEachOther) {
  has_nccl_ = false;
  Form(OneRankEach({0, 1}));
  CudaBackend& backend = *workers_[0].backend;
  const uint64_t epoch = kTestIds.epoch + 1;
  EXPECT_TRUE(backend.InitCommunicator(kCommunicator, epoch, "").ok());
  const absl::Status refused =
      backend.Enter({.communicator = kCommunicator,
                     .epoch = epoch,
                     .workers = {kFirstWorker, kFirstWorker + 1, kFirstWorker + 2},
                     .devices = {0, 1, CommunicatorMember::kElsewhere},
                     .num_ranks = 3},
                    now_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no libnccl.so.2"));
}

TEST_F(MixedMembers, AMemberThatDoesNotGreetIsNamedOnceItIsLate) {
  passes_ = [](size_t to, const NeighbourMessage& message) {
    return to != 0 || message.arena.has_value();
  };
  Form(kTwoOfTwo);
  RoundsUntil([this] { return EnteredOf(1) == kGood && EnteredOf(2) == kGood; });
  EXPECT_EQ(EnteredOf(0).code(), absl::StatusCode::kUnavailable);
  now_ += absl::Minutes(6);
  RoundsUntil([this] { return !absl::IsUnavailable(EnteredOf(0)); });
  EXPECT_EQ(EnteredOf(0).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(EnteredOf(0).message()),
              AllOf(HasSubstr("group_id=5 epoch="), HasSubstr("those of cuda:1 have not said")));
}

TEST_F(MixedMembers, ABadPlanIsAnErrorOnAllThatGetItsRowsAndTheNextMoveIsGood) {
  FormByNccl(kTwoOfTwo);
  StageDispatch();
  char* const plan = RegionAt(2);
  plan[200] = static_cast<char>(plan[200] ^ 1);
  for (const absl::Status& came : Move()) EXPECT_EQ(came.code(), absl::StatusCode::kDataLoss);
  plan[200] = static_cast<char>(plan[200] ^ 1);
  MoveDispatch();
}

// Its tokens were counted while a client had other routes in its plan: those of other nodes get landings of another length.
TEST_F(MixedMembers, AClientThatLiesOfItsTokensFailsTheOperationAndNothingElse) {
  FormByNccl(kTwoOfTwo);
  const size_t liar = 3;
  StageDispatch();
  char* const at = RegionAt(liar) + PlanTableOffset(problem_.num_ranks, problem_.num_experts);
  const std::vector<PlanRoute> lies(problem_.topk[liar].size(), {-1, 0});
  std::vector<PlanRoute> table(lies.size());
  std::memcpy(table.data(), at, table.size() * sizeof lies[0]);
  std::memcpy(at, lies.data(), lies.size() * sizeof lies[0]);
  const std::vector<absl::Status> came =
      Move([&] { std::memcpy(at, table.data(), table.size() * sizeof lies[0]); });
  for (const absl::Status& status : came) {
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
  EXPECT_THAT(std::string(came[liar].message()), HasSubstr("its plan has more tokens for"));
  MoveDispatch();
}

// Only who cannot read it says so: what the others wait for is sent.
TEST_F(MixedMembers, ARegionThatCannotBeReadIsAnErrorOfItsReaderAndNobodyWaits) {
  RegionBoard board = RegionBoard::Create(kTwoOfTwo.member_of_rank.size()).value();
  passes_ = [&board](size_t to, NeighbourMessage& message) {
    if (to == 0 && !message.arena.has_value()) message.fd.reset(dup(board.fd()));
    return true;
  };
  FormByNccl(kTwoOfTwo);
  for (const bool scatters : {true, false}) {
    if (scatters) {
      StageDispatch();
    } else {
      StageCombine(true);
    }
    board.Write(place_, {{.offset = kArenaBytes, .num_tokens = 1, .recv_capacity = 1}});
    const std::vector<absl::Status> came = Move();
    EXPECT_EQ(came[0].code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(came[0].message()),
                AllOf(HasSubstr("group_id=5 epoch="), HasSubstr("rank 1 stages "),
                      HasSubstr("at 2097152 of an arena of 2097152 bytes")));
    for (const size_t other : {1, 2, 3}) EXPECT_EQ(came[other], kGood);
    EXPECT_EQ(EnteredOf(0), kGood);
  }
}

class MixedMembersLost : public MixedMembers, public ::testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, MixedMembersLost, ::testing::Values(1, 2), [](const auto& info) {
  return std::string(info.param == 1 ? "OfTheSameNode" : "OfTheOther");
});

// What had its turn ends, by the abort; what was mapped goes when the device is idle.
TEST_P(MixedMembersLost, IsNamedWhatIsOpenEndsAndNothingStaysMapped) {
  FormByNccl(kTwoOfTwo);
  MoveDispatch();
  const size_t lost = GetParam();
  one_is_lost_ = true;
  workers_[lost].lost = true;
  StageDispatch();
  std::vector<size_t> others;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (i != lost) others.push_back(i);
  }
  PlaceOn(others);
  for (const size_t i : others) {
    EXPECT_FALSE(ended_[i].has_value());
    workers_[i].backend->WorkerLost(kFirstWorker + lost, "the lost one", now_);
  }
  RoundsUntil(
      [&] { return absl::c_all_of(others, [this](size_t i) { return ended_[i].has_value(); }); });
  const int unmapped = driver_->CountCalls("cuMemUnmap");
  for (const size_t i : others) {
    EXPECT_EQ(ended_[i]->code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(ended_[i]->message()), HasSubstr("the lost one is lost"));
    workers_[i].backend->Leave(kCommunicator, kTestIds.epoch, now_);
  }
  RoundsUntil([&] { return driver_->CountCalls("cuMemUnmap") >= unmapped + 3; });
}

// Its neighbour is late by half of the limit, and then says of whom.
TEST_F(MixedMembers, AMemberThatDoesNotSayWhereItsRowsAreIsNamedByItsNeighbour) {
  FormByNccl(kTwoOfTwo);
  MoveDispatch();
  StageDispatch();
  PlaceOn({0});
  now_ += absl::Seconds(4);
  RoundsUntil([this] { return !EnteredOf(0).ok() && !absl::IsUnavailable(EnteredOf(0)); });
  EXPECT_EQ(EnteredOf(0).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(EnteredOf(0).message()),
              HasSubstr("the worker of cuda:1 did not say where its rows are"));
}

}  // namespace
}  // namespace epd::cuda
