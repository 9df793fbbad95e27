#include "tests/unit/client/cuda/stream_node.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "kernels/recv_layout.h"
#include "kernels/routing_plan.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/region_layout.h"
#include "tests/fakes/cuda/host_run.h"

namespace epd::client {
namespace {

int MakeMemory(uint64_t bytes, const std::string& name) {
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  return fd;
}

void* Map(int fd, uint64_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  EXPECT_NE(data, MAP_FAILED);
  return data;
}

}  // namespace

StreamNode::StreamNode(Executor executor, bool drop_on_overflow)
    : executor_(executor), drop_on_overflow_(drop_on_overflow), graph_(driver_.table()) {
  for (int i = 0; i < cuda::NumKernels(); ++i) {
    const cuda::KernelShape& kernel = cuda::KernelAt(i);
    const bool copies = absl::StartsWith(kernel.name, "epd_copy_rows_");
    const bool in_bulk = absl::EndsWith(kernel.name, "_bulk");
    const auto run = [this, &kernel, copies, in_bulk](void** arguments) {
      if (copies) CountCopy(*static_cast<const cuda::CopyRowsArgs*>(arguments[0]), in_bulk);
      EXPECT_TRUE(cuda::RunOnHost(kernel, arguments[0], cuda::HostOrder::kForward)) << kernel.name;
    };
    driver_.SetKernel(kernel.name, run, kernel.args_bytes);
  }
  driver_.RunApart();  // A device works by itself, and not where it is asked.
  const cuda::DriverTable& t = driver_.table();
  cuda::Context context = nullptr;
  EXPECT_EQ(t.init(0), cuda::kSuccess);
  EXPECT_EQ(t.primary_context_retain(&context, 0), cuda::kSuccess);
  EXPECT_EQ(t.context_set_current(context), cuda::kSuccess);
  streams_.resize(kNumRanks);
  for (cuda::Stream& stream : streams_) EXPECT_EQ(t.stream_create(&stream, 1), cuda::kSuccess);
  pump_ = std::thread([this] {
    while (!stop_pump_) {
      {
        std::lock_guard lock(pumping_);
        if (!held_) driver_.RunStreams();
      }
      usleep(20);
    }
  });
  for (uint32_t r = 0; r < kNumRanks; ++r) {
    const auto layout = shm::SlotsLayout::For(features::kTakesManySlots, shm::kSlotsPerSession);
    slots_fds_.push_back(MakeMemory(layout.bytes(), "slots"));
    const shm::SlotsView view = shm::SlotsView::Create(Map(slots_fds_[r], layout.bytes()), r + 1,
                                                       /*incarnation=*/0, layout);
    pools_.push_back(std::make_shared<SlotPool>(view, eventfd(0, EFD_NONBLOCK)));
    groups_.push_back(std::make_shared<Group>("g", std::vector<uint32_t>{r},
                                              [this](const Drained&) { ++num_drained_; }));
  }
  MakeArenas();
  worker_ = std::make_unique<StreamWorker>(
      slots_fds_,
      StreamWorker::Sizes{.device_bytes = kNumRanks * 2 * kArenaBytes,
                          .group_id = kGroupId,
                          .num_experts = kNumExperts,
                          .max_tokens = kMaxTokens,
                          .recv_capacity = kCapacity,
                          .hidden = kHidden,
                          .top_k = kTopK,
                          .ranks_move = executor == Executor::kClient,
                          .drop_on_overflow = drop_on_overflow},
      [this](const MoveJob& job) {
        std::lock_guard lock(mutex_);
        return fail_moves_.ok() ? Move(job) : fail_moves_;
      });
  worker_->Start();
  worker_->StartTenant(1);
  for (uint32_t r = 0; r < kNumRanks; ++r) groups_[r]->OnJoined(MakeFormation(r, 1));
}

void StreamNode::CountCopy(const cuda::CopyRowsArgs& copy, bool in_bulk) {
  // The fake driver gives the device the host's addresses.
  for (const auto& pool : pools_) {
    const auto* const first = reinterpret_cast<const uint8_t*>(&pool->view().header());
    const auto* const status = reinterpret_cast<const uint8_t*>(copy.gate.status);
    if (status >= first && status < first + pool->view().bytes()) ++num_gates_in_slots_;
  }
  if (copy.row_bytes != kHidden * sizeof(float) || !copy.gate.Open()) return;
  if (in_bulk) ++num_bulk_copies_;
  const int64_t rows =
      copy.num_rows == nullptr ? copy.max_rows : std::min(copy.max_rows, *copy.num_rows);
  num_copied_rows_ += static_cast<uint64_t>(rows);
}

void StreamNode::End() {
  if (std::exchange(ended_, true)) return;
  for (auto& group : groups_) group->OnEnded({Code::kUnavailable, "the test is over"});
  EXPECT_TRUE(AwaitStreams());
}

StreamNode::~StreamNode() {
  End();
  worker_->Stop();
  // Groups without sites give everything back by themselves.
  EXPECT_TRUE(Await([this] {
    for (auto& pool : pools_) {
      if (pool.use_count() > 1) return false;
    }
    return true;
  })) << "something holds a session's slots";
  stop_pump_ = true;
  pump_.join();
  for (const cuda::Stream stream : streams_) driver_.table().stream_destroy(stream);
  driver_.table().primary_context_release(0);
  EXPECT_EQ(driver_.Leaks(), "");
  EXPECT_LE(driver_.CountCalls("cuModuleLoadData"), 1) << "one for all groups on a device";
  EXPECT_TRUE(driver_.violations().empty()) << driver_.violations().front();
}

GroupSpec StreamNode::ClientSpec() const {
  GroupSpec spec;
  spec.name = "g";
  spec.num_ranks = kNumRanks;
  spec.num_experts = kNumExperts;
  spec.max_tokens_per_rank = kMaxTokens;
  spec.recv_capacity_per_rank = kCapacity;
  spec.hidden = kHidden;
  spec.top_k = kTopK;
  spec.max_token_dtype = EPD_DTYPE_FLOAT32;
  spec.executor = executor_;
  spec.backend = "cuda";
  spec.drop_on_overflow = drop_on_overflow_;
  return spec;
}

void StreamNode::MakeArenas() {
  std::lock_guard lock(mutex_);
  for (uint8_t* arena : arenas_) munmap(arena, kArenaBytes);
  for (const int fd : arena_fds_) close(fd);
  arenas_.clear();
  arena_fds_.clear();
  for (uint32_t r = 0; r < kNumRanks; ++r) {
    arena_fds_.push_back(MakeMemory(kArenaBytes, cuda::FakeMemoryName(0)));
    arenas_.push_back(static_cast<uint8_t*>(Map(arena_fds_[r], kArenaBytes)));
  }
}

std::shared_ptr<const Formation> StreamNode::MakeFormation(uint32_t rank, uint64_t number) {
  auto formation = std::make_shared<Formation>();
  formation->group_id = kGroupId;
  formation->epoch = number;
  formation->formation = number;
  formation->spec = ClientSpec();
  formation->stream_region_bytes = kEagerBufferBytes;
  formation->arenas.resize(kNumRanks);
  for (uint32_t r = 0; r < kNumRanks; ++r) {
    auto memory = std::make_shared<DeviceMemory>();
    memory->bytes = kArenaBytes;
    memory->fd = UniqueFd(dup(arena_fds_[r]));
    formation->arenas[r].own = r == rank;
    formation->arenas[r].device = std::move(memory);
  }
  return formation;
}

std::shared_ptr<StreamGroup> StreamNode::Attach(uint32_t rank) {
  std::shared_ptr<StreamGroup> group;
  const Status status = TryAttach(rank, &group);
  EXPECT_TRUE(status.ok()) << status.message;
  return group;
}

Status StreamNode::TryAttach(uint32_t rank, std::shared_ptr<StreamGroup>* group) {
  return StreamGroup::Create(
      {.slots = pools_[rank],
       .lost =
           [this] {
             return lost_ ? Status{Code::kUnavailable, "epd is gone"} : Status();
           },
       .group = groups_[rank],
       .rank = rank,
       .device = 0,
       .driver = &graph_.table(),
       .image = "image"},
      Clock::now() + std::chrono::seconds(10), group);
}

// Behind the live rows a worker clears nothing.
void StreamNode::LeaveTail(uint8_t* region, size_t rank, const MoveJob& job) {
  RoutingSpec spec;
  spec.num_ranks = kNumRanks;
  spec.num_experts = kNumExperts;
  spec.top_k = kTopK;
  spec.alignment = job.alignment;
  spec.max_tokens = kMaxTokens;
  const auto* counts = reinterpret_cast<const int32_t*>(region + PlanCountsOffset(kNumExperts));
  const auto capacity = static_cast<int64_t>(job.parts[rank].recv_capacity);
  const int64_t live = std::min(TotalRecv(spec, counts, static_cast<int32_t>(rank)), capacity);
  std::memset(region + job.parts[rank].out_offset + static_cast<uint64_t>(live) * job.row_bytes,
              0xee, static_cast<uint64_t>(capacity - live) * job.row_bytes);
}

// As proto/epd/v1/region_layout.h has it for device memory; float32 rows.
absl::Status StreamNode::Move(const MoveJob& job) {
  ++num_moves_;
  RoutingSpec spec;
  spec.num_ranks = kNumRanks;
  spec.num_experts = kNumExperts;
  spec.top_k = kTopK;
  spec.max_tokens = kMaxTokens;
  const auto region = [&](size_t r) { return arenas_[r]; };
  const uint64_t stage_at = shm::StageOffset(RoutingPlanBytes(spec));
  if (job.kind == shm::Kind::kPrepare) {
    for (size_t to = 0; to < kNumRanks; ++to) {
      for (size_t from = 0; from < kNumRanks; ++from) {
        std::memcpy(region(to) + job.parts[to].out_offset + from * kNumExperts * 4, region(from),
                    kNumExperts * 4);
      }
    }
    return absl::OkStatus();
  }
  const bool scatters = Scatters(job.kind);
  for (size_t r = 0; r < kNumRanks; ++r) {
    std::memset(region(r) + job.parts[r].out_offset, 0, job.parts[r].out_bytes);
    if (scatters) LeaveTail(region(r), r, job);
    const auto* header = reinterpret_cast<const PlanHeader*>(region(r));
    if (header->magic != kPlanMagic || header->plan_id != job.plan_id ||
        header->epoch != formation_ || header->group_id != kGroupId) {
      return absl::DataLossError("a staged plan is not the prepare's");
    }
  }
  const auto rows_of = [&](uint8_t* base, uint64_t, uint64_t row) {
    return reinterpret_cast<float*>(base + row * job.row_bytes);
  };
  for (size_t r = 0; r < kNumRanks; ++r) {
    const MovePart& mine = job.parts[r];
    const auto* table =
        reinterpret_cast<const PlanRoute*>(region(r) + PlanTableOffset(kNumRanks, kNumExperts));
    for (uint64_t route = 0; route < mine.num_tokens * kTopK; ++route) {
      if (table[route].dst_rank < 0) continue;
      const auto other = static_cast<size_t>(table[route].dst_rank);
      const auto slot = static_cast<uint64_t>(table[route].slot);
      const MovePart& theirs = job.parts[other];
      if (slot >= theirs.recv_capacity) continue;
      const uint64_t token = route / kTopK;
      if (scatters) {
        uint8_t* const stage = region(r) + stage_at;
        uint8_t* const out = region(other) + theirs.out_offset;
        std::memcpy(out + slot * job.row_bytes, stage + token * job.row_bytes, job.row_bytes);
        if (job.has_weights) {
          const auto* weights = reinterpret_cast<const float*>(
              stage + shm::OutWeightsOffset(mine.num_tokens * job.row_bytes));
          reinterpret_cast<float*>(
              out + shm::OutWeightsOffset(theirs.recv_capacity * job.row_bytes))[slot] =
              weights[route];
        }
      } else {
        uint8_t* const stage = region(other) + stage_at;
        uint8_t* const out = region(r) + mine.out_offset;
        for (uint64_t h = 0; h < job.row_bytes / 4; ++h) {
          rows_of(out, 0, token)[h] += rows_of(stage, 0, slot)[h];
        }
        if (job.has_weights) {
          const auto* weights = reinterpret_cast<const float*>(
              stage + shm::OutWeightsOffset(theirs.recv_capacity * job.row_bytes));
          reinterpret_cast<float*>(
              out + shm::OutWeightsOffset(mine.num_tokens * job.row_bytes))[route] = weights[slot];
        }
      }
    }
  }
  return absl::OkStatus();
}

void StreamNode::FailMoves(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  fail_moves_ = status;
}

void StreamNode::ReplaceWorker() {
  worker_->Replace();
  EndFormation();
}

void StreamNode::EndFormation() {
  num_drained_ = 0;
  for (auto& group : groups_) {
    group->OnReform({.group_id = kGroupId,
                     .formation = formation_,
                     .cause = {Code::kAborted, "the worker was replaced"},
                     .wait = true});
  }
  EXPECT_TRUE(Await([this] { return num_drained_ >= static_cast<int>(kNumRanks); }));
}

void StreamNode::FinishReplacement() {
  MakeArenas();
  ++formation_;
  worker_->StartTenant(formation_);
  for (uint32_t r = 0; r < kNumRanks; ++r) groups_[r]->OnJoined(MakeFormation(r, formation_));
  EXPECT_TRUE(Await([this] { return HaveEntered(); }));
}

// Every slot that a stream arms speaks for the formation.
bool StreamNode::HaveEntered() const {
  bool entered = true;
  for (const auto& pool : pools_) {
    const shm::SlotsView& view = pool->view();
    view.ForEachUsedSlot([&](uint32_t i) {
      std::atomic_ref<uint64_t> number(view.slot(i).request.formation);
      entered &= !view.IsStreamed(i) || number.load(std::memory_order_acquire) == formation_;
    });
  }
  return entered;
}

void StreamNode::EndDaemon() {
  worker_->Stop();
  lost_ = true;
  for (auto& group : groups_) group->OnEnded({Code::kUnavailable, "epd is gone"});
}

bool StreamNode::Await(const std::function<bool()>& done) {
  for (int i = 0; i < 100'000; ++i) {
    if (done()) return true;
    usleep(100);
  }
  return false;
}

bool StreamNode::AwaitStreams() {
  return Await([this] {
    for (const cuda::Stream stream : streams_) {
      if (driver_.table().stream_query(stream) != cuda::kSuccess) return false;
    }
    return true;
  });
}

}  // namespace epd::client
