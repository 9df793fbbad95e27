// Goal: workers of one node whose devices can read each other's memory move a group's rows with the bits that the CPU
// backend gives, whichever devices they are, with no call of NCCL's and no wait for each other; where one pair has no peer
// access all of them use NCCL; a worker that is lost takes nothing away that another one still reads.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/backend/cuda/members/region_board.h"
#include "tests/unit/daemon/backend/cuda/direct_members_harness.h"

namespace epd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

const absl::Status kGood = absl::OkStatus();

class DirectMembersOn : public DirectMembers, public ::testing::WithParamInterface<Node> {};
INSTANTIATE_TEST_SUITE_P(
    Nodes, DirectMembersOn,
    ::testing::Values(OneRankEach({0, 1}), OneRankEach({3, 1}), OneRankEach({0, 1, 2, 3}),
                      OneRankEach({7, 0, 5}), OneRankEach({0, 1, 2, 3, 4, 5, 6, 7}),
                      Node{.devices = {0, 1}, .member_of_rank = {0, 1, 0, 1}},
                      Node{.devices = {2, 0, 1}, .member_of_rank = {0, 0, 1, 2, 0, 1, 2, 2}}));

TEST_P(DirectMembersOn, DoEveryOperationWithTheBitsOfTheCpuBackendAndWithoutNccl) {
  Form(GetParam());
  EXPECT_THAT(Formed(), Each(kGood));
  StagePrepare();
  EXPECT_THAT(Move(), Each(kGood));
  ExpectPrepared();
  // Twice: nothing is left of the first time.
  for (int step = 0; step < 2; ++step) {
    StageDispatch();
    EXPECT_THAT(Move(), Each(kGood));
    ExpectDispatched();
    for (const bool has_weights : {false, true}) {
      StageCombine(has_weights);
      EXPECT_THAT(Move(), Each(kGood));
      ExpectCombined(has_weights);
    }
  }
  EXPECT_EQ(nccl_.CountCalls("ncclCommInitRankConfig"), 0);
  for (const Worker& worker : workers_) {
    EXPECT_THAT(worker.notes, ::testing::ElementsAre(HasSubstr("directly")));
  }
}

// What all workers put into their streams for one operation.
struct Put {
  int copies = 0;
  int launches = 0;

  friend bool operator==(const Put&, const Put&) = default;
};

class PutsOfDirectMembers : public DirectMembers,
                            public ::testing::WithParamInterface<std::pair<int, int>> {
 protected:
  Put MoveCounted() {
    const auto count = [this](const char* call) { return driver_->CountCalls(call); };
    const Put before = {count("cuMemcpyAsync"), count("cuLaunchKernel")};
    EXPECT_THAT(Move(), Each(kGood));
    return {count("cuMemcpyAsync") - before.copies, count("cuLaunchKernel") - before.launches};
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, PutsOfDirectMembers,
                         ::testing::Values(std::pair{2, 1}, std::pair{4, 1}, std::pair{8, 1},
                                           std::pair{2, 3}));

// A copy of tables, and a launch of each step for all ranks that it has to do with: a prepare's counts; the checks of all ranks'
// plans in three, padding and rows of a scatter, tables and sums of a gather, and what they found.
TEST_P(PutsOfDirectMembers, AreNoMoreForMoreRanks) {
  const auto [n, ranks_each] = GetParam();
  Node node;
  for (int i = 0; i < n; ++i) {
    node.devices.push_back(i);
    for (int rank = 0; rank < ranks_each; ++rank) node.member_of_rank.push_back(i);
  }
  Form(node);
  EXPECT_THAT(Formed(), Each(kGood));
  StagePrepare();
  EXPECT_EQ(MoveCounted(), (Put{.copies = n, .launches = n}));
  ExpectPrepared();
  StageDispatch();
  EXPECT_EQ(MoveCounted(), (Put{.copies = n, .launches = n * (3 + 2 + 1 + 1)}));
  ExpectDispatched();
  StageCombine(true);
  EXPECT_EQ(MoveCounted(), (Put{.copies = n, .launches = n * (3 + 2 + 1)}));
  ExpectCombined(true);
}

// More turns than a board has entries.
TEST_F(DirectMembers, GoOnBehindTheLastEntryOfTheirBoards) {
  Form(OneRankEach({0, 1}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageDispatch();
  for (uint64_t i = 0; i < RegionBoard::kPlaces + 3; ++i) ASSERT_THAT(Move(), Each(kGood));
  ExpectDispatched();
}

TEST_F(DirectMembers, AGreetingIsKeptForAWorkerThatHasNotEntered) {
  late_ = 1;
  Form(OneRankEach({0, 1}));
  EXPECT_EQ(Formed()[0].code(), absl::StatusCode::kUnavailable);
  Enter(late_);
  EXPECT_THAT(Formed(), Each(kGood));
  StageDispatch();
  EXPECT_THAT(Move(), Each(kGood));
  ExpectDispatched();
}

// What comes of another epoch, of a worker that is no member, or a second time changes nothing.
size_t NumDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open)));
}

// A worker that serves as many groups as it can refuses each further one, which the others have entered and greet in.
TEST_F(DirectMembers, GreetingsOfGroupsThatAreNeverEnteredKeepFewDescriptors) {
  Form(OneRankEach({0, 1}));
  Formed();
  const UniqueFd board(memfd_create("board", MFD_CLOEXEC));
  const size_t before = NumDescriptors();
  for (uint64_t i = 1; i <= 800; ++i) {
    NeighbourMessage greeting;
    greeting.worker = kFirstWorker + 1;
    greeting.communicator = kCommunicator + i;
    greeting.epoch = 1;
    greeting.fd.reset(fcntl(board.get(), F_DUPFD_CLOEXEC, 0));
    ASSERT_TRUE(greeting.fd.valid());
    workers_[0].backend->Hear(std::move(greeting));
  }
  EXPECT_LE(NumDescriptors() - before, 64u);
}

// A tenant whose first operation fails here for its plan has told of its arenas there.
TEST_F(DirectMembers, ArenasOfTenantsThatMovedNothingHereKeepLittleMemory) {
  Form(OneRankEach({0, 1}));
  Formed();
  const size_t before = NumDescriptors();
  for (uint64_t group = 1000; group < 1100; ++group) {
    NeighbourMessage arena;
    arena.worker = kFirstWorker + 1;
    arena.communicator = kCommunicator;
    arena.epoch = kTestIds.epoch;
    arena.arena = {.group_id = group, .formation = 1, .rank = 1, .bytes = kArenaBytes};
    arena.fd.reset(memfd_create("arena", MFD_CLOEXEC));
    workers_[0].backend->Hear(std::move(arena));
  }
  EXPECT_LE(NumDescriptors() - before, 16u);
  StageDispatch();
  EXPECT_THAT(Move(), Each(kGood));
}

TEST_F(DirectMembers, WhatIsSaidOfACommunicatorThatHasEndedIsNotKept) {
  CudaBackend& backend = FormInVain();
  const size_t before = NumDescriptors();
  NeighbourMessage late;
  late.worker = kFirstWorker + 1;
  late.communicator = kCommunicator;
  late.epoch = kTestIds.epoch;
  late.fd.reset(memfd_create("arena", MFD_CLOEXEC));
  backend.Hear(std::move(late));
  EXPECT_EQ(NumDescriptors(), before);
}

TEST_F(DirectMembers, OfManyGroupsTheOldestAreNotKnownAnyMore) {
  Form(OneRankEach({0, 1}));
  CudaBackend& backend = *workers_[0].backend;
  constexpr uint64_t kFirst = kCommunicator + 1;
  constexpr uint64_t kMost = 4096;
  for (uint64_t i = 0; i <= kMost; ++i) {
    ASSERT_TRUE(backend.InitCommunicator(kFirst + i, 1, "").ok());
    ASSERT_TRUE(backend.InitCommunicator(kFirst + i, 2, "").ok());
  }
  const auto enter = [&](uint64_t communicator) {
    return backend.Enter({.communicator = communicator,
                          .epoch = 2,
                          .workers = {kFirstWorker, kFirstWorker + 1},
                          .devices = node_.devices,
                          .num_ranks = 2},
                         now_);
  };
  EXPECT_EQ(enter(kFirst).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(enter(kFirst + 1).ok());
}

TEST_F(DirectMembers, WhatIsNotTheirsIsNotHeard) {
  Form(OneRankEach({0, 1}));
  NeighbourMessage foreign;
  foreign.worker = 12345;
  foreign.communicator = kCommunicator;
  foreign.epoch = kTestIds.epoch;
  foreign.problem = "nobody's";
  workers_[0].backend->Hear(std::move(foreign));
  NeighbourMessage old;
  old.worker = kFirstWorker + 1;
  old.communicator = kCommunicator;
  old.epoch = kTestIds.epoch - 1;
  old.problem = "of the epoch before";
  workers_[0].backend->Hear(std::move(old));
  EXPECT_THAT(Formed(), Each(kGood));
  NeighbourMessage again;
  again.worker = kFirstWorker + 1;
  again.communicator = kCommunicator;
  again.epoch = kTestIds.epoch;
  again.problem = "too late";
  workers_[0].backend->Hear(std::move(again));
  StageDispatch();
  EXPECT_THAT(Move(), Each(kGood));
  ExpectDispatched();
}

// All come to the same, although only one of the six pairs is refused, in one direction.
TEST_F(DirectMembers, AllUseNcclWhereOnePairHasNoPeerAccess) {
  FakeMachine machine;
  machine.no_peer_access = {{2, 0}};
  Form(OneRankEach({0, 1, 2}), machine);
  ExpectNccl(3);
  for (const Worker& worker : workers_) {
    EXPECT_THAT(worker.notes,
                ::testing::ElementsAre(
                    AllOf(HasSubstr("NCCL"), HasSubstr("cuda:2 has no peer access to cuda:0"))));
    const RowLink link = worker.backend->LinkOf(kCommunicator, kTestIds.epoch);
    EXPECT_EQ(link.name, "nccl");
    EXPECT_EQ(link.why, "cuda:2 has no peer access to cuda:0");
    EXPECT_EQ(worker.backend->LinkOf(kCommunicator, kTestIds.epoch + 1).name, "");
  }
}

TEST_F(DirectMembers, AllUseNcclWhereOneSharesItsStagingByHandle) {
  by_handle_ = 1;
  Form(OneRankEach({0, 1}));
  ExpectNccl(2);
  for (const Worker& worker : workers_) {
    EXPECT_THAT(worker.notes,
                ::testing::ElementsAre(HasSubstr("cuda:1 shares its staging by handle")));
  }
}

TEST_F(DirectMembers, AllUseNcclWhereOneWasToldTo) {
  by_nccl_ = 0;
  Form(OneRankEach({4, 1}));
  ExpectNccl(2);
  for (const Worker& worker : workers_) {
    EXPECT_THAT(worker.notes,
                ::testing::ElementsAre(HasSubstr("cuda:4 was told so (EPD_CUDA_PEER_ACCESS=no)")));
  }
}

TEST_F(DirectMembers, NeedNoNcclToBeInstalledWhereTheyCanReadEachOther) {
  has_nccl_ = false;
  Form(OneRankEach({0, 1, 2, 3}));
  EXPECT_THAT(Formed(), Each(kGood));
  for (const Worker& worker : workers_) {
    const RowLink link = worker.backend->LinkOf(kCommunicator, kTestIds.epoch);
    EXPECT_EQ(link.name, "peer_memory");
    EXPECT_EQ(link.why, "");
  }
  StageDispatch();
  EXPECT_THAT(Move(), Each(kGood));
  ExpectDispatched();
}

TEST_F(DirectMembers, NeedNoUniqueIdWhereTheyCanReadEachOther) {
  has_id_ = false;
  Form(OneRankEach({0, 1}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageCombine(/*has_weights=*/true);
  EXPECT_THAT(Move(), Each(kGood));
  ExpectCombined(/*has_weights=*/true);
  EXPECT_EQ(nccl_.CountCalls("ncclCommInitRankConfig"), 0);
}

TEST_F(DirectMembers, WithoutAnIdOrPeerAccessTheReasonOfEachIsSaid) {
  has_id_ = false;
  by_nccl_ = 1;
  Form(OneRankEach({0, 1}));
  for (const absl::Status& refused : Formed()) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("cuda:1 was told so (EPD_CUDA_PEER_ACCESS=no)"),
                      HasSubstr("they cannot go by NCCL: this epoch has no unique id")));
  }
}

// The same on all, with both reasons; and nothing stays behind.
TEST_F(DirectMembers, CannotFormWithoutNcclWhereOnePairHasNoPeerAccess) {
  has_nccl_ = false;
  FakeMachine machine;
  machine.no_peer_access = {{2, 0}};
  Form(OneRankEach({0, 1, 2}), machine);
  for (const absl::Status& refused : Formed()) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        std::string(refused.message()),
        AllOf(HasSubstr("cannot go directly between the node's devices: cuda:2 has no peer access "
                        "to cuda:0"),
              HasSubstr("they cannot go by NCCL: no libnccl.so.2")));
  }
  for (Worker& worker : workers_) {
    worker.backend->Leave(kCommunicator, kTestIds.epoch, now_);
    for (int twice = 0; twice < 2; ++twice) EXPECT_TRUE(worker.backend->Poll(now_).ok());
    EXPECT_FALSE(worker.backend->busy());
    EXPECT_TRUE(absl::IsAborted(worker.backend->Entered(kCommunicator, kTestIds.epoch)));
  }
}

// What one epoch's members have told each other is of no use to those who come again.
TEST_F(DirectMembers, EnterAnEpochOnce) {
  CudaBackend& backend = FormInVain();
  const absl::Status again = backend.Enter({.communicator = kCommunicator,
                                            .epoch = kTestIds.epoch,
                                            .workers = {kFirstWorker, kFirstWorker + 1},
                                            .devices = node_.devices,
                                            .num_ranks = 2},
                                           now_);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("this epoch has had one"));
}

TEST_F(DirectMembers, ASettingThatIsNeitherYesNorNoIsRefused) {
  driver_.emplace(FakeMachine{});
  CudaDeviceOptions options;
  options.peer_setting = "off";
  const absl::Status refused = CudaDevice::Open(driver_->table(), options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("EPD_CUDA_PEER_ACCESS: got 'off', expected yes or no"));
}

TEST_F(DirectMembers, ABadPlanIsAnErrorOnAllThatReadItAndTheNextMoveIsGood) {
  Form(OneRankEach({0, 1, 2, 3}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageDispatch();
  char* const plan = RegionAt(2);
  plan[200] = static_cast<char>(plan[200] ^ 1);
  for (const absl::Status& came : Move()) {
    EXPECT_EQ(came.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(came.message(), HasSubstr("rank 2"));
  }
  plan[200] = static_cast<char>(plan[200] ^ 1);
  EXPECT_THAT(Move(), Each(kGood));
  ExpectDispatched();
}

// Only who cannot read it says so, and nobody waits.
TEST_F(DirectMembers, ARegionThatCannotBeReadIsAnErrorOfItsReaderAlone) {
  RegionBoard board = RegionBoard::Create(3).value();
  passes_ = [&board](size_t to, NeighbourMessage& message) {
    const bool of_first = message.worker == kFirstWorker + 1 && !message.arena.has_value();
    if (to == 0 && of_first) message.fd.reset(dup(board.fd()));
    return true;
  };
  Form(OneRankEach({0, 1, 2}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageCombine(true);
  board.Write(place_, {{.offset = kArenaBytes, .num_tokens = 1, .recv_capacity = 1}});
  const std::vector<absl::Status> came = Move();
  EXPECT_EQ(came[0].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(came[0].message()), HasSubstr("rank 1 stages "));
  EXPECT_EQ(came[1], kGood);
  EXPECT_EQ(came[2], kGood);
}

class DirectMembersRefused : public DirectMembers,
                             public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Calls, DirectMembersRefused,
                         ::testing::Values("cuMemImportFromShareableHandle", "cuMemAddressReserve",
                                           "cuMemMap", "cuMemSetAccess"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DirectMembersRefused, EndTheOperationWithTheDriversReasonAndTheNextOneIsGood) {
  Form(OneRankEach({0, 1}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageDispatch();
  const MoveId id = next_++;
  for (Worker& worker : workers_) {
    worker.backend->StartMove(id, *worker.arenas, group_, worker.job, now_);
    EXPECT_TRUE(worker.backend->Poll(now_).ok());
  }
  PassOn();
  driver_->Fail(GetParam(), kOutOfMemory);
  std::vector<std::optional<absl::Status>> ended(workers_.size());
  Round(ended);
  ASSERT_TRUE(ended[0].has_value());
  EXPECT_EQ(ended[0]->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(ended[0]->message()),
              AllOf(HasSubstr("another worker's staging"), HasSubstr(GetParam()),
                    HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
  workers_[1].backend->Cancel(id, now_);  // As its leader would.
  Round(ended);
  ASSERT_TRUE(ended[1].has_value());
  EXPECT_EQ(ended[1]->code(), absl::StatusCode::kAborted);
  for (Worker& worker : workers_) worker.backend->TakePrepared();
  EXPECT_THAT(Move(), Each(kGood));
  ExpectDispatched();
}

// The rows that a worker reads stay as long as it has them mapped, whatever becomes of their owner; and what it has mapped
// goes when the device is idle, and is gone in the end.
TEST_F(DirectMembers, AWorkerThatIsLostTakesNothingAwayThatAnotherOneStillReads) {
  Form(OneRankEach({0, 1}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageDispatch();
  ASSERT_THAT(Move(), Each(kGood));
  driver_->RunApart();
  const MoveId id = next_++;
  for (Worker& worker : workers_) {
    worker.backend->StartMove(id, *worker.arenas, group_, worker.job, now_);
    EXPECT_TRUE(worker.backend->Poll(now_).ok());
  }
  for (Worker& worker : workers_) {
    EXPECT_EQ(worker.backend->TakePrepared().size(), 1u);
    worker.backend->Issue({.id = id, .place = place_, .recv_capacity = {kCapacity, kCapacity}},
                          now_);
  }
  EXPECT_TRUE(workers_[0].backend->Poll(now_).ok());  // It reads, as soon as its stream runs.
  std::memset(Out(0), 0xee, kCapacity * kRowBytes);
  // The other one's arenas go, and with them its memory, before that.
  workers_[1].lost = true;
  one_is_lost_ = true;
  for (char* arena : workers_[1].mapped) munmap(arena, kArenaBytes);
  workers_[1].mapped.clear();
  workers_[1].arenas.reset();
  EXPECT_TRUE(workers_[1].backend->Poll(now_).ok());
  workers_[0].backend->WorkerLost(kFirstWorker + 1, "cuda:1", now_);
  driver_->RunStreams();
  const auto moved = workers_[0].backend->Poll(now_);
  ASSERT_TRUE(moved.ok()) << moved.status();
  ASSERT_EQ(moved->size(), 1u);
  EXPECT_EQ(moved->at(0).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(moved->at(0).status.message()), HasSubstr("cuda:1 is lost"));
  const int unmapped = driver_->CountCalls("cuMemUnmap");
  workers_[0].backend->Leave(kCommunicator, kTestIds.epoch, now_);
  EXPECT_TRUE(workers_[0].backend->Poll(now_).ok());
  EXPECT_TRUE(workers_[0].backend->Poll(now_).ok());
  EXPECT_GT(driver_->CountCalls("cuMemUnmap"), unmapped) << "what it had mapped of the other";
}

// A member that never says where its regions are ends the communicator, not the wait.
TEST_F(DirectMembers, AMemberThatSaysNothingAtItsTurnIsLate) {
  Form(OneRankEach({0, 1}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageDispatch();
  ASSERT_THAT(Move(), Each(kGood));
  const MoveId id = next_++;
  for (Worker& worker : workers_) {
    worker.backend->StartMove(id, *worker.arenas, group_, worker.job, now_);
    EXPECT_TRUE(worker.backend->Poll(now_).ok());
    EXPECT_EQ(worker.backend->TakePrepared().size(), 1u);
  }
  workers_[0].backend->Issue({.id = id, .place = place_, .recv_capacity = {kCapacity, kCapacity}},
                             now_);
  EXPECT_TRUE(workers_[0].backend->Poll(now_).ok());
  EXPECT_EQ(workers_[0].backend->Entered(kCommunicator, kTestIds.epoch), kGood);
  EXPECT_TRUE(workers_[0].backend->Poll(now_ + absl::Seconds(4)).ok());
  const absl::Status ended = workers_[0].backend->Entered(kCommunicator, kTestIds.epoch);
  EXPECT_EQ(ended.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(ended.message()), HasSubstr("did not say where its rows are"));
}

}  // namespace
}  // namespace epd::cuda
