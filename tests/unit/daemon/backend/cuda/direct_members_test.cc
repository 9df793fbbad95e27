// Goal: workers of one node whose devices can read each other's memory move a group's rows with the bits that the CPU
// backend gives, whichever devices they are, with no call of NCCL's and no wait for each other; where one pair has no peer
// access all of them use NCCL; a worker that is lost takes nothing away that another one still reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/backend/cuda/cuda_backend.h"
#include "daemon/backend/cuda/members/region_board.h"
#include "proto/epd/v1/region_layout.h"
#include "tests/fakes/cuda/fake_driver.h"
#include "tests/fakes/cuda/fake_nccl.h"
#include "tests/fakes/cuda/host_run.h"
#include "tests/unit/kernels/exchange.h"

namespace epd::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kArenaBytes = 2 << 20;
constexpr uint64_t kRegion = 4096;
constexpr uint64_t kRowBytes = 16 * 4;
constexpr int64_t kCapacity = 1024;
constexpr uint64_t kCommunicator = 5;
constexpr uint64_t kFirstWorker = 100;

// Who is where.
struct Node {
  std::vector<int> devices;         // Of each worker.
  std::vector<int> member_of_rank;  // In the order of the members' first ranks.
};

Node OneRankEach(std::vector<int> devices) {
  Node node{.devices = std::move(devices), .member_of_rank = {}};
  for (size_t i = 0; i < node.devices.size(); ++i) {
    node.member_of_rank.push_back(static_cast<int>(i));
  }
  return node;
}

// One worker with what its clients have mapped.
struct Worker {
  std::unique_ptr<CudaBackend> backend;
  std::unique_ptr<ArenaSet> arenas;
  std::vector<char*> mapped;  // [R]
  MoveJob job;
  std::vector<std::string> notes;
  bool lost = false;
};

class DirectMembers : public ::testing::Test {
 protected:
  void Form(const Node& node, FakeMachine machine = {}) {
    node_ = node;
    machine.num_devices = 8;
    driver_.emplace(machine);
    for (int i = 0; i < NumKernels(); ++i) {
      const KernelShape shape = KernelAt(i);
      driver_->SetKernel(
          shape.name,
          [shape](void** arguments) {
            ASSERT_TRUE(RunOnHost(shape, arguments[0], HostOrder::kShuffled));
          },
          shape.args_bytes);
    }
    nccl_table_ = {.table = nccl_.table(), .version = 23004, .path = "nccl", .problem = ""};
    MakeProblem();
    for (size_t i = 0; i < node_.devices.size(); ++i) workers_.push_back(Start(i));
    for (size_t i = 0; i < workers_.size(); ++i) Enter(i);
  }
  ~DirectMembers() override {
    for (Worker& worker : workers_) {
      worker.arenas.reset();
      for (char* arena : worker.mapped) munmap(arena, kArenaBytes);
    }
    if (!driver_.has_value()) return;
    driver_->RunStreams();
    for (Worker& worker : workers_) {
      // Each is a process of its own otherwise, and leaves this thread without a context.
      driver_->table().context_set_current(worker.backend->device().context());
      worker.backend.reset();
    }
    std::vector<std::string> violations = driver_->violations();
    if (one_is_lost_) {
      // To the fake all streams are of one process; what a dead one had goes, whatever others do.
      std::erase_if(violations, [](const std::string& what) {
        return what.find("stream has work left") != std::string::npos;
      });
    }
    EXPECT_THAT(violations, IsEmpty());
    EXPECT_EQ(driver_->Leaks(), "");
  }

  size_t num_ranks() const { return node_.member_of_rank.size(); }
  Worker& Of(size_t rank) { return workers_[static_cast<size_t>(node_.member_of_rank[rank])]; }

  void MakeProblem() {
    problem_.num_ranks = static_cast<int>(num_ranks());
    problem_.num_experts = 2 * problem_.num_ranks + 1;
    problem_.top_k = 5;
    problem_.alignment = 4;
    problem_.max_tokens = 24;
    problem_.use_table = true;
    for (int e = 0; e < problem_.num_experts; ++e) {
      problem_.owner.push_back(static_cast<int32_t>(Uniform(random_, 0, problem_.num_ranks - 1)));
    }
    problem_.topk.resize(num_ranks());
    for (std::vector<int64_t>& topk : problem_.topk) {
      topk.resize(static_cast<size_t>(Uniform(random_, 1, problem_.max_tokens) * problem_.top_k));
      for (int64_t& expert : topk) expert = Uniform(random_, -1, problem_.num_experts - 1);
    }
    plans_.emplace(problem_);
    group_ = {.group_id = kTestIds.group_id,
              .epoch = kTestIds.epoch,
              .spec = {},
              .expert_owner = problem_.owner,
              .communicator = kCommunicator,
              .member_of_rank = node_.member_of_rank,
              .formation = 3};
    group_.spec.num_experts = static_cast<uint32_t>(problem_.num_experts);
    group_.spec.max_tokens_per_rank = static_cast<uint32_t>(problem_.max_tokens);
  }

  Worker Start(size_t index) {
    Worker worker;
    CudaDeviceOptions options;
    options.ordinal = node_.devices[index];
    options.staging_bytes = uint64_t{64} << 20;
    options.limit = absl::Seconds(5);
    options.image = "an image";
    if (index == by_nccl_) options.peer_setting = "no";
    options.sharing = index == by_handle_ ? SharingChoice::kIpcHandle : SharingChoice::kAuto;
    auto device = CudaDevice::Open(driver_->table(), options);
    EXPECT_TRUE(device.ok()) << device.status();
    worker.backend = std::make_unique<CudaBackend>(*std::move(device), options.limit, &nccl_table_);
    worker.arenas = worker.backend->CreateArenas(problem_.num_ranks, kArenaBytes).value();
    for (int i = 0; i < 100 && absl::IsUnavailable(worker.arenas->Ready()); ++i) {
      driver_->RunStreams();
      EXPECT_TRUE(worker.backend->Poll(now_).ok());
    }
    for (int r = 0; r < problem_.num_ranks; ++r) {
      const ArenaShare share = worker.arenas->Share(r).value();
      if (share.sharing != ArenaSharing::kDeviceDescriptor) continue;
      void* at =
          mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, share.read_write_fd, 0);
      EXPECT_NE(at, MAP_FAILED);
      worker.mapped.push_back(static_cast<char*>(at));
    }
    return worker;
  }
  void Enter(size_t index) {
    CommunicatorMember in{.communicator = kCommunicator,
                          .epoch = kTestIds.epoch,
                          .workers = {},
                          .self = static_cast<int>(index),
                          .devices = node_.devices,
                          .num_ranks = num_ranks()};
    for (size_t i = 0; i < workers_.size(); ++i) in.workers.push_back(kFirstWorker + i);
    Worker& worker = workers_[index];
    const std::string id(sizeof(NcclUniqueId), 'x');
    EXPECT_TRUE(worker.backend->InitCommunicator(kCommunicator, kTestIds.epoch, id).ok());
    EXPECT_TRUE(worker.backend->Enter(in, now_).ok());
  }

  // As epd: each message to the run that it is for, with who sent it.
  void PassOn() {
    for (size_t from = 0; from < workers_.size(); ++from) {
      if (workers_[from].lost) continue;
      for (NeighbourMessage& message : workers_[from].backend->TakeForNeighbours()) {
        Worker& to = workers_[message.worker - kFirstWorker];
        message.worker = kFirstWorker + from;
        if (!to.lost) to.backend->Hear(std::move(message));
      }
      for (std::string& note : workers_[from].backend->TakeNotes()) {
        workers_[from].notes.push_back(std::move(note));
      }
    }
  }
  // One round of everybody's loop. What ended, by worker.
  void Round(std::vector<std::optional<absl::Status>>& ended) {
    driver_->RunStreams();
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].lost) continue;
      auto moved = workers_[i].backend->Poll(now_);
      ASSERT_TRUE(moved.ok()) << moved.status();
      for (const MovedRows& one : *moved) ended[i] = one.status;
    }
    PassOn();
  }
  std::vector<absl::Status> Formed() {
    std::vector<std::optional<absl::Status>> none(workers_.size());
    for (int i = 0; i < 10; ++i) Round(none);
    std::vector<absl::Status> entered;
    for (const Worker& worker : workers_) {
      entered.push_back(worker.backend->Entered(kCommunicator, kTestIds.epoch));
    }
    return entered;
  }

  // Threads of the communicators' own call it.
  void ExpectNccl(int num_members) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (nccl_.CountCalls("ncclCommInitRankConfig") < num_members && absl::Now() < deadline) {
      Formed();
      std::this_thread::yield();
    }
    EXPECT_EQ(nccl_.CountCalls("ncclCommInitRankConfig"), num_members);
  }

  // A job's part of a rank, in the eyes of its own worker and of the others; regions are elsewhere on each worker.
  uint64_t RegionOf(size_t member) const { return kRegion * (1 + member); }
  void AddRank(size_t rank, uint64_t stage_bytes, uint64_t out_bytes) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      const bool local = node_.member_of_rank[rank] == static_cast<int>(i);
      MovePart part{.arena = static_cast<int>(rank),
                    .local = local,
                    .stage_offset = RegionOf(i),
                    .stage_bytes = stage_bytes,
                    .out_offset = RegionOf(i) + shm::RoundUpToRegionAlignment(stage_bytes),
                    .out_bytes = out_bytes};
      if (local) {
        part.num_tokens = static_cast<uint64_t>(problem_.NumTokens(static_cast<int>(rank)));
        part.recv_capacity = kCapacity;
      }
      workers_[i].job.parts.push_back(part);
    }
    std::memset(Out(rank), 0xee, out_bytes);
  }
  char* RegionAt(size_t rank) {
    return Of(rank).mapped[rank] + RegionOf(static_cast<size_t>(node_.member_of_rank[rank]));
  }
  char* Out(size_t rank) { return Of(rank).mapped[rank] + Of(rank).job.parts[rank].out_offset; }
  void Begin(shm::Kind kind, bool has_weights) {
    for (Worker& worker : workers_) {
      worker.job = {.kind = kind,
                    .dtype = 1,
                    .has_weights = has_weights,
                    .top_k = static_cast<uint32_t>(problem_.top_k),
                    .alignment = static_cast<uint32_t>(problem_.alignment),
                    .row_bytes = kRowBytes,
                    .plan_id = kTestIds.plan_id,
                    .parts = {}};
    }
  }
  void Stage(size_t rank, const void* rows, uint64_t num_rows, const std::vector<float>& weights,
             uint64_t out_bytes) {
    const uint64_t plan_bytes = RoutingPlanBytes(problem_.Spec());
    EXPECT_OK(StagePlan(plans_->View(static_cast<int>(rank)), RegionAt(rank), plan_bytes));
    char* stage = RegionAt(rank) + shm::StageOffset(plan_bytes);
    std::memcpy(stage, rows, num_rows * kRowBytes);
    if (!weights.empty()) {
      std::memcpy(stage + shm::OutWeightsOffset(num_rows * kRowBytes), weights.data(),
                  weights.size() * 4);
    }
    AddRank(rank,
            shm::StageOffset(plan_bytes) + shm::OutBytes(num_rows * kRowBytes, weights.size()),
            out_bytes);
  }

  // What every worker's part came to. `before_turn`: runs when all are prepared.
  std::vector<absl::Status> Move(const std::function<void()>& before_turn = [] {}) {
    const MoveId id = next_++;
    for (Worker& worker : workers_) {
      if (!worker.lost) worker.backend->StartMove(id, *worker.arenas, group_, worker.job, now_);
    }
    std::vector<std::optional<absl::Status>> ended(workers_.size());
    size_t num_prepared = 0;
    for (int round = 0; round < 50; ++round) {
      Round(ended);
      for (Worker& worker : workers_) {
        if (!worker.lost) num_prepared += worker.backend->TakePrepared().size();
      }
      if (num_prepared == workers_.size()) {
        num_prepared = 0;
        before_turn();
        for (Worker& worker : workers_) {
          if (worker.lost) continue;
          worker.backend->Issue({.id = id,
                                 .place = place_,
                                 .recv_capacity = std::vector<uint64_t>(num_ranks(), kCapacity)},
                                now_);
        }
        ++place_;
      }
    }
    std::vector<absl::Status> came;
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].lost) continue;
      came.push_back(ended[i].value_or(absl::InternalError("it does not end")));
    }
    return came;
  }

  void StageDispatch() {
    Begin(shm::Kind::kDispatch, /*has_weights=*/true);
    rows_.clear();
    weights_.clear();
    for (size_t r = 0; r < num_ranks(); ++r) {
      const int64_t tokens = problem_.NumTokens(static_cast<int>(r));
      rows_.push_back(RandomBytes(random_, tokens * kRowBytes));
      weights_.push_back(RandomFloats(random_, problem_.topk[r].size()));
      Stage(r, rows_[r].data(), static_cast<uint64_t>(tokens), weights_[r],
            shm::OutBytes(kCapacity * kRowBytes, kCapacity));
    }
  }
  void ExpectDispatched() {
    const std::vector<::epd::Region> stages =
        StageScatters(problem_, *plans_, rows_, weights_, kRowBytes);
    const std::vector<StageRef> refs = Refs(stages);
    for (size_t r = 0; r < num_ranks(); ++r) {
      ::epd::Region rows(kCapacity * kRowBytes);
      std::vector<float> weights(kCapacity);
      PullScatterArgs args;
      args.plan = &plans_->View(static_cast<int>(r));
      args.sources = refs.data();
      args.row_bytes = kRowBytes;
      args.capacity = kCapacity;
      args.recv_rows = rows.data();
      args.recv_weights = weights.data();
      EXPECT_OK(PullScatter(args));
      EXPECT_EQ(std::memcmp(Out(r), rows.data(), rows.size()), 0) << "rank " << r;
      EXPECT_EQ(std::memcmp(Out(r) + shm::OutWeightsOffset(rows.size()), weights.data(),
                            kCapacity * sizeof(float)),
                0)
          << "rank " << r;
    }
  }
  void StageCombine(bool has_weights) {
    Begin(shm::Kind::kCombine, has_weights);
    rows_.clear();
    weights_.assign(num_ranks(), std::vector<float>(kCapacity));
    for (size_t r = 0; r < num_ranks(); ++r) {
      rows_.push_back(RandomRows(random_, kCapacity * kRowBytes, DataType::kFloat32));
      if (has_weights) weights_[r] = RandomFloats(random_, kCapacity);
      const auto tokens = static_cast<uint64_t>(problem_.NumTokens(static_cast<int>(r)));
      Stage(r, rows_[r].data(), kCapacity, has_weights ? weights_[r] : std::vector<float>(),
            shm::OutBytes(tokens * kRowBytes, has_weights ? problem_.topk[r].size() : 0));
    }
  }
  void ExpectCombined(bool has_weights) {
    const std::vector<::epd::Region> stages =
        StageGathers(problem_, *plans_, rows_, weights_, kRowBytes, has_weights);
    const std::vector<StageRef> refs = Refs(stages);
    for (size_t r = 0; r < num_ranks(); ++r) {
      const int64_t tokens = problem_.NumTokens(static_cast<int>(r));
      ::epd::Region out(static_cast<size_t>(tokens) * kRowBytes);
      std::vector<float> weights(problem_.topk[r].size());
      PullGatherArgs args;
      args.plan = &plans_->View(static_cast<int>(r));
      args.sources = refs.data();
      args.row_bytes = kRowBytes;
      args.num_tokens = tokens;
      args.out = out.data();
      if (has_weights) args.out_weights = weights.data();
      EXPECT_OK(PullGather(args));
      EXPECT_EQ(std::memcmp(Out(r), out.data(), out.size()), 0) << "rank " << r;
      if (!has_weights) continue;
      EXPECT_EQ(std::memcmp(Out(r) + shm::OutWeightsOffset(out.size()), weights.data(),
                            weights.size() * sizeof(float)),
                0)
          << "rank " << r;
    }
  }

  Random random_{20260101};
  size_t by_handle_ = SIZE_MAX;  // The worker that shares its staging so.
  size_t by_nccl_ = SIZE_MAX;    // That was told to use NCCL.
  bool one_is_lost_ = false;
  Node node_;
  reference::Problem problem_;
  std::optional<Plans> plans_;
  std::optional<FakeDriver> driver_;
  FakeNccl nccl_;
  LoadedNccl nccl_table_;
  std::vector<Worker> workers_;
  MoveGroup group_;
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  MoveId next_ = 1;
  uint64_t place_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

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
  Begin(shm::Kind::kPrepare, false);
  const size_t row = group_.spec.num_experts * sizeof(int32_t);
  for (size_t r = 0; r < num_ranks(); ++r) {
    AddRank(r, row, row * num_ranks());
    std::memset(RegionAt(r), static_cast<int>(r) + 1, row);
  }
  EXPECT_THAT(Move(), Each(kGood));
  for (size_t r = 0; r < num_ranks(); ++r) {
    for (size_t other = 0; other < num_ranks(); ++other) {
      EXPECT_EQ(Out(r)[(other + 1) * row - 1], static_cast<char>(other + 1));
    }
  }
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

// More turns than a board has entries.
TEST_F(DirectMembers, GoOnBehindTheLastEntryOfTheirBoards) {
  Form(OneRankEach({0, 1}));
  EXPECT_THAT(Formed(), Each(kGood));
  StageDispatch();
  for (uint64_t i = 0; i < RegionBoard::kPlaces + 3; ++i) ASSERT_THAT(Move(), Each(kGood));
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
