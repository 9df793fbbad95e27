// The worker executor on a device: which copies and kernels move an operation's rows between its ranks'
// regions (proto/epd/v1/region_layout.h), and what is to be read when they have.
//
// Every rank's plan is copied out of its region, checked, and used from the copy only, so that a client
// that changes it meanwhile changes nothing. A scatter clears padding and tail, then pushes rows straight
// into the receivers' outputs; a gather sums rows where they lie. Kernels of a rank whose plan is bad write
// nothing but zeros.
//
// Of an operation of several workers only the ranks of this one are moved here. Between workers of several nodes rows go
// as member_traffic.h says, in the middle of the steps: a scatter goes through landings, a gather packs what is for each
// other worker into one message, and reads the messages of the others, which stand in their ranks' arenas here. Where the
// device reads another worker's memory nothing is sent between the two: plans of its ranks are copied and checked as those of
// this worker's, a scatter takes the rows that are for its own ranks out of their stages, each row once, and a gather sums
// where the rows lie. One operation may have workers of both kinds.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/cuda/members/member_traffic.h"
#include "daemon/backend/cuda/moves/move_steps.h"
#include "daemon/backend/move_job.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"
#include "kernels/region/region_layout.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// One operation. `group` and `job` are borrowed.
class RowMoves {
 public:
  // `traffic`: of an operation that sends, borrowed; that of a gather may be planned later. Null: all ranks are of this worker or
  // mapped. Of mapped ranks the job has sizes, and the places have regions, when Steps is called; one that is mapped no more by
  // then is not read, and nothing else changes of what is sent.
  //   INVALID_ARGUMENT  a rank's sizes do not fit its region or the group
  static absl::StatusOr<RowMoves> Create(const MoveGroup& group, const MoveJob& job,
                                         const MemberTraffic* traffic = nullptr);

  const MoveRoom& room() const { return room_; }
  // Fills the tables in `places.host` and says what to put into a stream.
  MoveSteps Steps(const MovePlaces& places, const DeviceShape& device) const;
  // What sizes follow from, to `host`: the counts [R, E] in each plan of this worker's ranks, for CountsRead, and of a scatter
  // how many tokens these have for each rank, for TokensIn. The memory is this move's alone meanwhile.
  MoveRoom read_room() const;
  StreamSteps Read(const MovePlaces& places, const DeviceShape& device) const;
  // Once they are complete: the counts that all plans have.
  //   DATA_LOSS  two plans differ, or they are no counts of this group
  absl::StatusOr<std::vector<int32_t>> CountsRead(const uint8_t* host) const;
  // Once the steps are complete: the same of all plans that the kernels saw.
  absl::StatusOr<std::vector<int32_t>> CountsSeen(const uint8_t* host) const;
  // Once they are complete: [ranks of this worker, R], of each to each rank, each token once; no more than fit `counts`.
  // Empty for a gather. Whatever a plan's bytes are it is a number that all workers can go by.
  std::vector<uint32_t> TokensIn(const uint8_t* host, const std::vector<int32_t>& counts) const;
  // Whether they are counts of this group.
  bool Fit(const std::vector<int32_t>& counts) const;
  // The numbers that all workers of the operation must plan from.
  TrafficShape Shape() const;
  // Whether the images of other workers' stages fit, once their sizes are known.
  //   INVALID_ARGUMENT  one does not
  absl::Status CheckImages() const;
  // Once the steps are complete: what the kernels found; of a prepare the counts [R, E] that the ranks staged stand at
  // `host`. Errors as Backend::StartMove.
  absl::Status Outcome(const uint8_t* host) const;

 private:
  // Offsets in device memory. The tables lie at its start, of a prepare behind the counts, and are copied there from host
  // memory.
  struct Layout {
    uint64_t owners = 0;
    uint64_t targets = 0;      // RecvTarget or GatherSource of each rank.
    uint64_t plans_of = 0;     // Where each local rank's plan is; null: of another worker's.
    uint64_t plan_copies = 0;  // What the kernels do with all plans.
    uint64_t plan_sums = 0;
    uint64_t plan_checks = 0;
    uint64_t pushes = 0;   // Of a scatter that sends, one for each of this worker's ranks,
    uint64_t reads = 0;    // ... of one that reads, for each rank whose plan is seen here,
    uint64_t lands = 0;    // ... of both for each of this worker's.
    uint64_t gathers = 0;  // Of a gather, one for each of its own, as the next three.
    uint64_t table_checks = 0;
    uint64_t packs = 0;
    uint64_t finds = 0;
    uint64_t tables_bytes = 0;
    uint64_t reports = 0;
    uint64_t counts = 0;           // Of a prepare, as the next two.
    uint64_t count_rows = 0;       // What becomes of each rank's row,
    uint64_t count_outs = 0;       // ... and the tables that it goes to.
    std::vector<uint64_t> plans;   // [R]
    std::vector<uint64_t> sums;    // [R]
    std::vector<uint64_t> locals;  // [R] of the index, as the next two.
    std::vector<uint64_t> zones;
    std::vector<uint64_t> segments;
    // Of a scatter on several nodes; [R] all but the last, by sender or receiver.
    std::vector<uint64_t> landing_targets;
    std::vector<uint64_t> landing_sources;
    std::vector<uint64_t> push_scratch;
    std::vector<uint64_t> num_rows;
    std::vector<uint64_t> marks;
    uint64_t landings = 0;
    // Of a gather on several nodes.
    std::vector<uint64_t> pack_runs;  // [R]
    uint64_t packed_sources = 0;
    uint64_t packed_runs = 0;
    uint64_t messages = 0;
    uint64_t host_results = 0;  // In host memory: reports, headers, counts.
  };
  RowMoves(const MoveGroup& group, const MoveJob& job, const MemberTraffic* traffic)
      : group_(group), job_(job), traffic_(traffic) {}

  absl::Status Check();
  absl::Status CheckPart(size_t rank) const;
  void Arrange();
  void ArrangePrepare();
  void ArrangeTables(ScratchCursor& cursor);
  void ArrangeSteps(ScratchCursor& cursor);
  void ArrangeLandings(ScratchCursor& cursor);
  void ArrangePackedTables(ScratchCursor& cursor);
  uint64_t TakeAligned(ScratchCursor& cursor, uint64_t bytes) const;
  bool scatters() const;
  bool spans() const { return traffic_ != nullptr; }
  bool local(size_t rank) const { return job_.parts[rank].local; }
  bool mapped(size_t rank) const { return job_.parts[rank].mapped; }
  // Whether a copy of the rank's plan, or of the plan's counts, comes here: its stage is read here as well.
  bool sees_plan(size_t rank) const { return local(rank) || mapped(rank); }
  // Whether rows of a scatter go straight from stages into outputs; those of this worker's ranks do, too.
  bool reads() const;
  absl::StatusOr<std::vector<int32_t>> CountsOf(const uint8_t* host,
                                                const std::vector<bool>& of_rank) const;
  // Of a copy.
  uint64_t PlanCopyBytes(size_t rank) const;
  size_t num_ranks() const { return job_.parts.size(); }
  int64_t num_locals() const;
  uint64_t counts_bytes() const { return num_ranks() * group_.spec.num_experts * sizeof(int32_t); }
  uint64_t HeadersAt() const;
  uint64_t CountsAt() const;
  RoutingSpec DeviceSpec(const MovePlaces& places) const;
  void WriteTables(const MovePlaces& places) const;
  // row_moves_prepare.cc
  MoveSteps Prepare(const MovePlaces& places, const DeviceShape& device) const;
  // row_moves_plans.cc: what VerifyPlans does with the plans that are seen here.
  struct PlanWork {
    std::vector<CopyPlan::Args> copies;
    std::vector<SumPlan::Args> sums;
    std::vector<VerifyPlan::Args> checks;
    uint64_t bytes = 0;  // Of the longest copy.
  };
  PlanWork PlanWorkOf(const MovePlaces& places) const;
  void WritePlanWork(const MovePlaces& places) const;
  void VerifyPlans(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  // row_moves_rows.cc: rows, each step in one launch for all ranks that it has to do with.
  void ClearPadding(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  void ReadRows(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  void Gather(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  PushDirectArgs DirectArgs(const MovePlaces& places, size_t rank) const;
  LandRowsArgs LandArgs(const MovePlaces& places, size_t rank) const;
  GatherReduceArgs GatherArgs(const MovePlaces& places, size_t rank) const;
  PlanRoute* TableOf(const MovePlaces& places, size_t rank) const;
  // row_moves_read.cc
  struct Counting;
  Counting TakeCounting(ScratchCursor& cursor, size_t rank) const;
  Tiling DestinationTiling(size_t rank) const;
  // row_moves_members.cc
  void WriteLandingTables(const MovePlaces& places) const;
  void WritePackedTables(const MovePlaces& places) const;
  // Where a rank's expert rows are to be read, and how many.
  GatherSource SourceAt(const MovePlaces& places, size_t rank) const;
  void PackMessages(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  void FindPackedRows(const MovePlaces& places, const DeviceShape& device,
                      StreamSteps& steps) const;
  void PushToLandings(const MovePlaces& places, const DeviceShape& device,
                      StreamSteps& steps) const;
  void ExpandLandings(const MovePlaces& places, const DeviceShape& device,
                      StreamSteps& steps) const;
  PushLandingArgs LandingArgs(const MovePlaces& places, size_t rank) const;
  std::vector<PeerBytes> Exchange(const MovePlaces& places) const;
  const LandingPlaceOnDevice& LandingOf(size_t source, size_t destination) const {
    return traffic_->landings[source * num_ranks() + destination];
  }
  void TakeFindings(const MovePlaces& places, const DeviceShape& device, StreamSteps& steps) const;
  DevicePointer Region(const MovePlaces& places, size_t rank) const;
  DevicePointer Stage(const MovePlaces& places, size_t rank) const;
  DevicePointer Out(const MovePlaces& places, size_t rank) const;
  // Null where the operation has none.
  float* WeightsIn(const MovePlaces& places, size_t rank) const;
  float* WeightsOut(const MovePlaces& places, size_t rank) const;
  RegionLayout LayoutOf(size_t rank) const;

  const MoveGroup& group_;
  const MoveJob& job_;
  const MemberTraffic* const traffic_;
  RoutingSpec spec_;  // Owners in host memory.
  uint64_t plan_bytes_ = 0;
  Layout layout_;
  MoveRoom room_;
};

}  // namespace epd::cuda
