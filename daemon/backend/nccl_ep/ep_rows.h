// One operation's rows by NCCL EP: which routes it is told, where it finds and leaves rows, and whether its
// own layout was that of epd's plan.
//
// A member has one rank. Its plan comes to the host and is taken apart there (ep_routing.h); the library
// gets what lands. Its receive buffer has LibrarySlots slots, so where the rank's own has fewer, rows land
// beside it and are copied.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/backend/cuda/members/member_rows.h"
#include "daemon/backend/cuda/members/member_traffic.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "daemon/backend/member_moves.h"
#include "daemon/backend/nccl_ep/ep_routing.h"

namespace epd::nccl_ep {

class EpRows : public cuda::MemberRows {
 public:
  // Of any kind but prepare. `self`: this member. `group` and `job` are borrowed.
  //   INVALID_ARGUMENT  sizes that do not fit, or beyond what the group was made for (which)
  static absl::StatusOr<std::unique_ptr<cuda::MemberRows>> Create(const MoveGroup& group,
                                                                  const MoveJob& job,
                                                                  const GroupSpec& library,
                                                                  int self);

  cuda::MoveRoom read_room() const override {
    return {.device_bytes = 0, .host_bytes = plan_bytes_};
  }
  cuda::StreamSteps Read(const cuda::MovePlaces& places,
                         const cuda::DeviceShape& device) const override;
  absl::Status TakeRead(const uint8_t* host) override;
  const std::vector<int32_t>& counts() const override { return routing_->counts(); }
  const cuda::MoveRoom& room() const override { return room_; }
  absl::Status TakeNumbers(const std::vector<uint32_t>& tokens_from) override;
  cuda::MoveSteps Steps(const cuda::MovePlaces& places, const cuda::DeviceShape& device) override;
  //   INTERNAL  the library's layout is not the plan's
  absl::Status Outcome(const uint8_t* host) const override;

 private:
  struct Layout {
    uint64_t topk = 0;  // Offsets in device memory; of host memory, too.
    uint64_t zones = 0;
    uint64_t total = 0;
    uint64_t weights = 0;
    uint64_t landing = 0;
    uint64_t landing_weights = 0;
  };
  EpRows(const MoveGroup& group, const MoveJob& job, const GroupSpec& library);
  absl::Status Check(int self);
  void Arrange();
  const MovePart& part() const { return job_.parts[rank_]; }
  size_t num_locals() const { return library_.num_experts / job_.parts.size(); }
  bool lands_beside() const { return scatters_ && part().recv_capacity < slots_; }

  const MoveGroup& group_;
  const MoveJob& job_;
  const GroupSpec library_;
  const uint64_t slots_;  // LibrarySlots.
  const bool scatters_;
  size_t rank_ = 0;  // Of this member.
  RoutingSpec spec_;
  cuda::MemberTraffic no_traffic_;
  uint64_t plan_bytes_ = 0;  // Of the region's plan that can be in use.
  Layout layout_;
  cuda::MoveRoom room_;
  std::optional<EpRouting> routing_;
  std::vector<int32_t> landing_;  // [T, K]
  std::vector<int32_t> zones_;    // [local experts]
};

}  // namespace epd::nccl_ep
