// One operation's rows by NCCL EP: which routes it is told, where it finds and leaves rows, and whether its
// own layout was that of epd's plan.
//
// A member has one rank. Its plan comes to the host once and is taken apart there (ep_routing.h); the library
// gets what lands, where it has not got it yet (ep_handles.h). Later operations of the plan look at its header alone, and
// fail where that is another one than was taken apart, or than the library was told. Its receive buffer has LibrarySlots
// slots, so where the rank's own has fewer, rows land beside it and are copied.
//
// A dispatch writes the zones, zeros in their padding included (nccl_ep.h, ncclEpHandleConfig_t), and nothing behind them:
// the tail is cleared here. So are tokens without a route where rows are summed, of which the library promises nothing.
#pragma once

#include <memory>
#include <vector>

#include "daemon/backend/cuda/members/known_counts.h"
#include "daemon/backend/cuda/members/member_rows.h"
#include "daemon/backend/cuda/members/member_traffic.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "daemon/backend/member_moves.h"
#include "daemon/backend/nccl_ep/ep_handles.h"
#include "daemon/backend/nccl_ep/ep_routing.h"
#include "kernels/region/region_layout.h"

namespace epd::nccl_ep {

// What operations of a communicator leave for later ones.
struct EpKnown {
  // Of a step's layers, forward and backward, of a few tenants: 128 KiB each at 4,096 tokens and top-8.
  static constexpr size_t kMaxPlans = 256;

  cuda::KnownPlans<std::shared_ptr<const EpRouting>> routings{kMaxPlans};
  EpHandles handles;
};

class EpRows : public cuda::MemberRows {
 public:
  // Of any kind but prepare. `self`: this member. `group`, `job` and `known` are borrowed.
  //   INVALID_ARGUMENT  sizes that do not fit, or beyond what the group was made for (which)
  static absl::StatusOr<std::unique_ptr<cuda::MemberRows>> Create(const MoveGroup& group,
                                                                  const MoveJob& job,
                                                                  const GroupSpec& library,
                                                                  int self, EpKnown& known);

  cuda::MoveRoom read_room() const override {
    return {.device_bytes = 0, .host_bytes = routing_ == nullptr ? plan_bytes_ : 0};
  }
  cuda::StreamSteps Read(const cuda::MovePlaces& places,
                         const cuda::DeviceShape& device) const override;
  absl::Status TakeRead(const uint8_t* host) override;
  const std::vector<int32_t>& counts() const override { return routing_->counts(); }
  // How many this rank has at all, to each rank.
  const std::vector<uint32_t>& tokens_to() const override { return tokens_; }
  const cuda::MoveRoom& room() const override { return room_; }
  absl::Status TakeNumbers(const std::vector<uint32_t>& tokens_from) override;
  cuda::MoveSteps Steps(const cuda::MovePlaces& places, const cuda::DeviceShape& device) override;
  //   DATA_LOSS  the plan has changed since it was read, or since the library was told
  //   INTERNAL   the library's layout is not the plan's
  absl::Status Outcome(const uint8_t* host) const override;

 private:
  struct Layout {
    uint64_t plan = 0;  // Of its header. Offsets in device memory; of host memory, too.
    uint64_t topk = 0;
    uint64_t zones = 0;
    uint64_t total = 0;
    uint64_t weights = 0;
    uint64_t landing = 0;
    uint64_t landing_weights = 0;
  };
  EpRows(const MoveGroup& group, const MoveJob& job, const GroupSpec& library, EpKnown& known);
  absl::Status Check(int self);
  void Arrange();
  // Of this call's sizes, which its client has said.
  bool Fits(const PlanHeader& plan) const;
  cuda::KnownPlan plan() const;
  // Has the library told where it must be.
  void Tell(const cuda::MovePlaces& places, cuda::MoveSteps& steps);
  void Clear(const RegionLayout& region, cuda::DevicePointer out, cuda::StreamSteps& steps) const;
  void TakeLayout(const uint8_t* host) const;
  absl::Status CheckLayout() const;
  uint64_t live() const;  // Slots of the zones that this rank has room for.
  const MovePart& part() const { return job_.parts[rank_]; }
  size_t num_locals() const { return library_.num_experts / job_.parts.size(); }
  bool lands_beside() const { return scatters_ && part().recv_capacity < slots_; }

  const MoveGroup& group_;
  const MoveJob& job_;
  const GroupSpec library_;
  EpKnown& known_;
  const uint64_t slots_;  // LibrarySlots.
  const bool scatters_;
  size_t rank_ = 0;  // Of this member.
  RoutingSpec spec_;
  cuda::MemberTraffic no_traffic_;
  uint64_t plan_bytes_ = 0;  // Of the region's plan that can be in use.
  Layout layout_;
  cuda::MoveRoom room_;
  std::shared_ptr<const EpRouting> routing_;
  std::vector<uint32_t> tokens_;  // [R], all the same.
  EpRoutes routes_;
  EpLayout expected_;
  EpUse use_;
};

}  // namespace epd::nccl_ep
