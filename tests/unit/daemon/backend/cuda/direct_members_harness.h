// All workers of a node, or of several, in one process, each on a device of one fake driver, with epds and a leader between them
// that do no more than pass on what is said.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/backend/cuda/cuda_backend.h"
#include "proto/epd/v1/region_layout.h"
#include "tests/fakes/cuda/fake_driver.h"
#include "tests/fakes/cuda/fake_nccl.h"
#include "tests/fakes/cuda/host_run.h"
#include "tests/unit/kernels/exchange.h"

namespace epd::cuda {

inline constexpr uint64_t kArenaBytes = 2 << 20;
inline constexpr uint64_t kRegion = 4096;
inline constexpr uint64_t kRowBytes = 16 * 4;
inline constexpr int64_t kCapacity = 1024;
inline constexpr uint64_t kCommunicator = 5;
inline constexpr uint64_t kFirstWorker = 100;

// Who is where.
struct Node {
  std::vector<int> devices;         // Of each worker.
  std::vector<int> member_of_rank;  // In the order of the members' first ranks.
  std::vector<int> node_of = {};    // Of each worker; empty: all are on one.
};

inline Node OneRankEach(std::vector<int> devices, std::vector<int> node_of = {}) {
  Node node{.devices = std::move(devices), .member_of_rank = {}, .node_of = std::move(node_of)};
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
    nccl_table_ = {.table = Nccl(), .version = 23004, .path = "nccl", .problem = ""};
    if (!has_nccl_) nccl_table_.problem = "no libnccl.so.2";
    if (has_id_ && has_nccl_) id_ = NcclId();
    MakeProblem();
    for (size_t i = 0; i < node_.devices.size(); ++i) workers_.push_back(Start(i));
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (i != late_) Enter(i);
    }
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
    EXPECT_THAT(violations, ::testing::IsEmpty());
    EXPECT_EQ(driver_->Leaks(), "");
  }

  // That they fall back on.
  virtual NcclTable Nccl() { return nccl_.table(); }
  virtual std::string NcclId() { return std::string(sizeof(NcclUniqueId), 'x'); }

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
      if (one_rank_per_token_) LeadToOneRank(topk);
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

  // All experts of a token have one owner.
  void LeadToOneRank(std::vector<int64_t>& topk) {
    const auto top_k = static_cast<size_t>(problem_.top_k);
    for (size_t i = 0; i < topk.size(); ++i) {
      const auto owner = [this](int64_t expert) {
        return problem_.owner[static_cast<size_t>(expert)];
      };
      const int64_t first = i % top_k == 0 ? -1 : topk[i - i % top_k];
      do {
        topk[i] = Uniform(random_, 0, problem_.num_experts - 1);
      } while (first >= 0 && owner(topk[i]) != owner(first));
    }
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
    worker.arenas = worker.backend->CreateArenas(problem_.num_ranks, kArenaBytes, {}).value();
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
  bool OnOneNode(size_t a, size_t b) const {
    return node_.node_of.empty() || node_.node_of[a] == node_.node_of[b];
  }
  void Enter(size_t index) {
    CommunicatorMember in{.communicator = kCommunicator,
                          .epoch = kTestIds.epoch,
                          .workers = {},
                          .self = static_cast<int>(index),
                          .devices = {},
                          .num_ranks = num_ranks()};
    for (size_t i = 0; i < workers_.size(); ++i) {
      in.workers.push_back(kFirstWorker + i);
      in.devices.push_back(OnOneNode(index, i) ? node_.devices[i] : CommunicatorMember::kElsewhere);
    }
    Worker& worker = workers_[index];
    EXPECT_TRUE(worker.backend->InitCommunicator(kCommunicator, kTestIds.epoch, id_).ok());
    EXPECT_TRUE(worker.backend->Enter(in, now_).ok());
  }

  // As epd: each message to the run that it is for, with who sent it.
  void PassOn() {
    for (size_t from = 0; from < workers_.size(); ++from) {
      if (workers_[from].lost) continue;
      for (NeighbourMessage& message : workers_[from].backend->TakeForNeighbours()) {
        const size_t index = message.worker - kFirstWorker;
        EXPECT_TRUE(OnOneNode(from, index)) << from << " tells " << index;
        Worker& to = workers_[index];
        message.worker = kFirstWorker + from;
        if (!to.lost && passes_(index, message)) to.backend->Hear(std::move(message));
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
  // Two that cannot read each other's memory and have no NCCL; the first one's backend, which has left the communicator.
  CudaBackend& FormInVain() {
    has_nccl_ = false;
    FakeMachine machine;
    machine.no_peer_access = {{1, 0}};
    Form(OneRankEach({0, 1}), machine);
    Formed();
    CudaBackend& backend = *workers_[0].backend;
    backend.Leave(kCommunicator, kTestIds.epoch, now_);
    EXPECT_TRUE(backend.Poll(now_).ok());
    return backend;
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

  // As the leader: what all have said of the ranks of one.
  std::vector<uint32_t> TokensFrom(size_t worker) const {
    std::vector<uint32_t> tokens;
    std::vector<size_t> said(workers_.size());
    for (const int member : node_.member_of_rank) {
      const auto source = static_cast<size_t>(member);
      for (size_t rank = 0; rank < num_ranks() && !tokens_to_[source].empty(); ++rank) {
        const uint32_t one = tokens_to_[source][said[source]++];
        if (node_.member_of_rank[rank] == static_cast<int>(worker)) tokens.push_back(one);
      }
    }
    return tokens;
  }
  // What every worker's part came to. `before_turn`: runs when all are prepared.
  std::vector<absl::Status> Move(const std::function<void()>& before_turn = [] {}) {
    const MoveId id = next_++;
    for (Worker& worker : workers_) {
      if (!worker.lost) worker.backend->StartMove(id, *worker.arenas, group_, worker.job, now_);
    }
    std::vector<std::optional<absl::Status>> ended(workers_.size());
    size_t num_prepared = 0;
    tokens_to_.assign(workers_.size(), {});
    for (int round = 0; round < 50; ++round) {
      Round(ended);
      for (size_t i = 0; i < workers_.size(); ++i) {
        if (workers_[i].lost) continue;
        for (PreparedMove& one : workers_[i].backend->TakePrepared()) {
          ++num_prepared;
          tokens_to_[i] = std::move(one.tokens_to);
        }
      }
      if (num_prepared == workers_.size()) {
        num_prepared = 0;
        before_turn();
        for (size_t i = 0; i < workers_.size(); ++i) {
          if (workers_[i].lost) continue;
          workers_[i].backend->Issue(
              {.id = id,
               .place = place_,
               .recv_capacity = std::vector<uint64_t>(num_ranks(), kCapacity),
               .tokens_from = tells_tokens_ ? TokensFrom(i) : std::vector<uint32_t>()},
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

  uint64_t CountsBytes() const { return group_.spec.num_experts * sizeof(int32_t); }
  void StagePrepare() {
    Begin(shm::Kind::kPrepare, false);
    counts_.clear();
    for (size_t r = 0; r < num_ranks(); ++r) {
      counts_.push_back(RandomBytes(random_, CountsBytes()));
      AddRank(r, CountsBytes(), CountsBytes() * num_ranks());
      std::memcpy(RegionAt(r), counts_[r].data(), CountsBytes());
    }
  }
  // By each rank, and by each worker.
  void ExpectPrepared() {
    reference::Bytes all;
    for (const reference::Bytes& counts : counts_) {
      all.insert(all.end(), counts.begin(), counts.end());
    }
    for (size_t r = 0; r < num_ranks(); ++r) {
      EXPECT_EQ(std::memcmp(Out(r), all.data(), all.size()), 0) << "rank " << r;
      for (size_t i = 0; i < workers_.size(); ++i) {
        reference::Bytes kept(CountsBytes());
        const absl::Span<char> to(reinterpret_cast<char*>(kept.data()), kept.size());
        EXPECT_TRUE(workers_[i].arenas->Read(static_cast<int>(r), RegionOf(i), to).ok());
        EXPECT_EQ(kept, counts_[r]) << "rank " << r << " by worker " << i;
      }
    }
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
  // What epd does with a message for a worker; false: it is lost.
  std::function<bool(size_t to, NeighbourMessage& message)> passes_ =
      [](size_t, const NeighbourMessage&) { return true; };
  size_t late_ = SIZE_MAX;       // The worker that enters when the test says so.
  size_t by_handle_ = SIZE_MAX;  // The worker that shares its staging so.
  size_t by_nccl_ = SIZE_MAX;    // That was told to use NCCL.
  bool has_nccl_ = true;         // It is installed.
  bool has_id_ = true;           // ... and whoever was to make the unique id could.
  bool one_is_lost_ = false;
  bool one_rank_per_token_ = false;
  bool tells_tokens_ = true;  // The leader does.
  Node node_;
  reference::Problem problem_;
  std::optional<Plans> plans_;
  std::optional<FakeDriver> driver_;
  FakeNccl nccl_;
  LoadedNccl nccl_table_;
  std::string id_;
  std::vector<Worker> workers_;
  std::vector<std::vector<uint32_t>> tokens_to_;  // Of each worker, as it has said.
  MoveGroup group_;
  std::vector<reference::Bytes> counts_;  // Of each rank, as the next two.
  std::vector<reference::Bytes> rows_;
  std::vector<std::vector<float>> weights_;
  MoveId next_ = 1;
  uint64_t place_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace epd::cuda
