// The worker executor on a device: which copies and kernels move an operation's rows between its ranks'
// regions (proto/epd/v1/region_layout.h), and what is to be read when they have.
//
// Every rank's plan is copied out of its region, checked, and used from the copy only, so that a client
// that changes it meanwhile changes nothing. A scatter clears padding and tail, then pushes rows straight
// into the receivers' outputs; a gather sums rows where they lie. Kernels of a rank whose plan is bad write
// nothing but zeros.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/cuda/stream_steps.h"
#include "daemon/backend/move_job.h"
#include "kernels/cuda/launch.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// Memory that a move needs besides the regions.
struct MoveRoom {
  uint64_t device_bytes = 0;
  uint64_t host_bytes = 0;  // Registered; the device's view of it has the same bytes.
};

// Where it is.
struct MovePlaces {
  std::vector<DevicePointer> arenas;  // By arena of the set.
  DevicePointer device = 0;
  DevicePointer host_on_device = 0;  // The device's address of `host`.
  uint8_t* host = nullptr;
};

// One operation. `group` and `job` are borrowed.
class RowMoves {
 public:
  //   INVALID_ARGUMENT  a rank's sizes do not fit its region or the group
  static absl::StatusOr<RowMoves> Create(const MoveGroup& group, const MoveJob& job);

  const MoveRoom& room() const { return room_; }
  // Fills the tables in `places.host` and says what to put into a stream.
  StreamSteps Steps(const MovePlaces& places, const DeviceShape& device) const;
  // Once the steps are complete: what the kernels found. Errors as Backend::StartMove.
  absl::Status Outcome(const uint8_t* host) const;
  // After a prepare: the counts [R, E] that the ranks staged.
  const int32_t* Counts(const uint8_t* host) const;

 private:
  // Offsets in device memory. The tables lie at its start and are copied there from host memory.
  struct Layout {
    uint64_t owners = 0;
    uint64_t targets = 0;  // RecvTarget or GatherSource of each rank.
    uint64_t tables_bytes = 0;
    uint64_t reports = 0;
    uint64_t counts = 0;           // prepare only.
    std::vector<uint64_t> plans;   // [R]
    std::vector<uint64_t> sums;    // [R]
    std::vector<uint64_t> locals;  // [R] of the index, as the next two.
    std::vector<uint64_t> zones;
    std::vector<uint64_t> segments;
    uint64_t host_results = 0;  // In host memory: reports, headers, counts.
  };
  RowMoves(const MoveGroup& group, const MoveJob& job) : group_(group), job_(job) {}

  absl::Status Check();
  absl::Status CheckPart(size_t rank) const;
  void Arrange();
  bool scatters() const;
  size_t num_ranks() const { return job_.parts.size(); }
  uint64_t counts_bytes() const { return num_ranks() * group_.num_experts * sizeof(int32_t); }
  uint64_t HeadersAt() const;
  uint64_t CountsAt() const;
  RoutingSpec DeviceSpec(const MovePlaces& places) const;
  void WriteTables(const MovePlaces& places) const;
  StreamSteps GatherCounts(const MovePlaces& places) const;
  void VerifyPlans(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  void Scatter(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  void Gather(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  void TakeResults(const MovePlaces& places, StreamSteps& steps) const;
  DevicePointer Region(const MovePlaces& places, size_t rank) const;
  DevicePointer Stage(const MovePlaces& places, size_t rank) const;
  DevicePointer Out(const MovePlaces& places, size_t rank) const;

  const MoveGroup& group_;
  const MoveJob& job_;
  RoutingSpec spec_;  // Owners in host memory.
  uint64_t plan_bytes_ = 0;
  Layout layout_;
  MoveRoom room_;
};

}  // namespace epd::cuda
