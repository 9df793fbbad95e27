#include "daemon/backend/cuda/moves/row_moves.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/moves/device_tables.h"
#include "daemon/backend/kernel_status.h"
#include "daemon/backend/move_routing.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/row_dtype.h"

namespace epd::cuda {

absl::StatusOr<RowMoves> RowMoves::Create(const MoveGroup& group, const MoveJob& job,
                                          const MemberTraffic* traffic) {
  RowMoves moves(group, job, traffic);
  if (absl::Status checked = moves.Check(); !checked.ok()) return checked;
  if (job.kind == shm::Kind::kPrepare) {
    moves.ArrangePrepare();
  } else {
    moves.Arrange();
  }
  return moves;
}

bool RowMoves::scatters() const { return Scatters(job_.kind); }

bool RowMoves::reads() const {
  return !spans() || std::any_of(job_.parts.begin(), job_.parts.end(),
                                 [](const MovePart& part) { return part.mapped; });
}

absl::Status RowMoves::Check() {
  spec_ = RoutingOf(group_, job_);
  if (const KernelError bad = CheckRoutingSpec(spec_); !bad.ok()) return ToStatus(bad);
  const bool rows = job_.kind != shm::Kind::kPrepare;
  if (rows && job_.row_bytes == 0) return absl::InvalidArgumentError("rows of 0 bytes");
  if (rows && !scatters() &&
      (!shm::IsReducible(job_.dtype) || job_.row_bytes % shm::DtypeBytes(job_.dtype) != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("rows of ", job_.row_bytes, " bytes of dtype ",
                                                   job_.dtype, " cannot be summed"));
  }
  plan_bytes_ = rows ? RoutingPlanBytes(spec_) : 0;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    if (absl::Status checked = CheckPart(rank); !checked.ok()) return checked;
  }
  return absl::OkStatus();
}

absl::Status RowMoves::CheckPart(size_t rank) const {
  const MovePart& part = job_.parts[rank];
  if (part.num_tokens > group_.spec.max_tokens_per_rank) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " announced ", part.num_tokens,
                                                   " tokens, the group has at most ",
                                                   group_.spec.max_tokens_per_rank));
  }
  const RegionLayout layout = LayoutOf(rank);
  if (part.stage_bytes < layout.stage_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " announced a stage of ",
                                                   part.stage_bytes, " bytes, expected ",
                                                   layout.stage_bytes));
  }
  if (part.out_bytes < layout.out_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " announced an output of ",
                                                   part.out_bytes, " bytes, expected ",
                                                   layout.out_bytes));
  }
  return absl::OkStatus();
}

void RowMoves::Arrange() {
  const size_t ranks = num_ranks();
  // Over no memory it only measures.
  ScratchCursor cursor(nullptr);
  ArrangeTables(cursor);
  layout_.reports = Take<ReportWord>(cursor, static_cast<int64_t>(ranks));
  for (size_t rank = 0; rank < ranks; ++rank) {
    // A rank of another worker takes no room but for its plan.
    const int64_t here = local(rank) ? 1 : 0;
    const int64_t locals = here * NumLocalExperts(spec_, static_cast<int32_t>(rank));
    layout_.plans.push_back(Take<uint8_t>(cursor, static_cast<int64_t>(PlanCopyBytes(rank))));
    layout_.sums.push_back(Take<uint64_t>(cursor, sees_plan(rank) ? PlanSumUnits(spec_) : 0));
    layout_.locals.push_back(Take<int32_t>(cursor, locals));
    layout_.zones.push_back(Take<int64_t>(cursor, locals + 1));
    layout_.segments.push_back(Take<int64_t>(cursor, locals * static_cast<int64_t>(ranks)));
  }
  if (spans() && scatters()) ArrangeLandings(cursor);
  if (spans() && !scatters()) layout_.messages = TakeAligned(cursor, traffic_->message_bytes);
  layout_.host_results = layout_.tables_bytes;
  room_ = {.device_bytes = cursor.used(), .host_bytes = CountsAt() + ranks * counts_bytes()};
}

int64_t RowMoves::num_locals() const {
  return std::count_if(job_.parts.begin(), job_.parts.end(),
                       [](const MovePart& part) { return part.local; });
}

uint64_t RowMoves::PlanCopyBytes(size_t rank) const {
  if (!sees_plan(rank)) return 0;
  // A gather needs of another worker's plan no routes: those of its own ranks say which slots they sum.
  if (local(rank) || scatters()) return plan_bytes_;
  return PlanTableOffset(spec_.num_ranks, spec_.num_experts);
}

// What the host fills in, at the start.
void RowMoves::ArrangeTables(ScratchCursor& cursor) {
  static_assert(sizeof(RecvTarget) <= sizeof(GatherSource));
  const auto ranks = static_cast<int64_t>(num_ranks());
  layout_.owners = Take<int32_t>(cursor, group_.spec.num_experts);
  layout_.targets = Take<GatherSource>(cursor, ranks);
  layout_.plans_of = Take<const uint8_t*>(cursor, ranks);
  layout_.plan_copies = Take<CopyPlan::Args>(cursor, ranks);
  layout_.plan_sums = Take<SumPlan::Args>(cursor, ranks);
  layout_.plan_checks = Take<VerifyPlan::Args>(cursor, ranks);
  for (size_t rank = 0; spans() && scatters() && rank < num_ranks(); ++rank) {
    layout_.landing_targets.push_back(Take<LandingTarget>(cursor, local(rank) ? ranks : 0));
    layout_.landing_sources.push_back(Take<LandingSource>(cursor, local(rank) ? ranks : 0));
  }
  if (spans() && !scatters()) ArrangePackedTables(cursor);
  ArrangeSteps(cursor);
  layout_.tables_bytes = cursor.used();
}

void RowMoves::ArrangeSteps(ScratchCursor& cursor) {
  const int64_t locals = num_locals();
  if (scatters()) {
    layout_.pushes = Take<PushLandingArgs>(cursor, spans() ? locals : 0);
    layout_.reads = Take<PushDirectArgs>(cursor, reads() ? static_cast<int64_t>(num_ranks()) : 0);
    layout_.lands = Take<LandRowsArgs>(cursor, locals);
    return;
  }
  layout_.gathers = Take<GatherReduceArgs>(cursor, locals);
  layout_.table_checks = Take<CheckTable::Args>(cursor, locals);
  if (!spans()) return;
  layout_.packs = Take<PackRowsArgs>(cursor, locals);
  layout_.finds = Take<FindPacked::Args>(cursor, locals);
}

// The runs of this worker's ranks are those of `traffic_` as it is now; of the others' no more will come than it says.
void RowMoves::ArrangePackedTables(ScratchCursor& cursor) {
  for (const PackedRows& packed : traffic_->packed) {
    layout_.pack_runs.push_back(Take<PackRun>(cursor, static_cast<int64_t>(packed.packs.size())));
  }
  layout_.packed_sources = Take<FindPacked::Source>(cursor, static_cast<int64_t>(num_ranks()));
  layout_.packed_runs = Take<PackedRun>(cursor, static_cast<int64_t>(traffic_->max_unpacks));
}

// Landings and messages begin at multiples of 64 bytes of the memory.
uint64_t RowMoves::TakeAligned(ScratchCursor& cursor, uint64_t bytes) const {
  constexpr int64_t kAlignment = 64;
  const auto at = static_cast<uint64_t>(AlignUp(static_cast<int64_t>(cursor.used()), kAlignment));
  Take<uint8_t>(cursor, static_cast<int64_t>(at - cursor.used() + bytes));
  return at;
}

void RowMoves::ArrangeLandings(ScratchCursor& cursor) {
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    const int64_t here = local(rank) ? 1 : 0;
    layout_.push_scratch.push_back(cursor.used());
    PushLandingArgs unused;
    if (local(rank)) TakePushScratch(spec_, cursor, &unused);
    layout_.num_rows.push_back(Take<int64_t>(cursor, here * spec_.num_ranks));
    layout_.marks.push_back(
        Take<int64_t>(cursor, here * static_cast<int64_t>(job_.parts[rank].recv_capacity)));
  }
  layout_.landings = TakeAligned(cursor, traffic_->landing_bytes);
}

uint64_t RowMoves::HeadersAt() const {
  return layout_.host_results + num_ranks() * sizeof(ReportWord);
}

uint64_t RowMoves::CountsAt() const { return HeadersAt() + num_ranks() * sizeof(PlanHeader); }

DevicePointer RowMoves::Region(const MovePlaces& places, size_t rank) const {
  const MovePart& part = job_.parts[rank];
  if (part.mapped) return places.peer_regions[rank];
  return places.arenas[static_cast<size_t>(part.arena)] + part.stage_offset;
}

DevicePointer RowMoves::Stage(const MovePlaces& places, size_t rank) const {
  return Region(places, rank) + LayoutOf(rank).stage_at;
}

float* RowMoves::WeightsIn(const MovePlaces& places, size_t rank) const {
  if (!job_.has_weights) return nullptr;
  return At<float>(Stage(places, rank), LayoutOf(rank).weights_at);
}

float* RowMoves::WeightsOut(const MovePlaces& places, size_t rank) const {
  if (!job_.has_weights) return nullptr;
  return At<float>(Out(places, rank), LayoutOf(rank).out_weights_at);
}

RegionLayout RowMoves::LayoutOf(size_t rank) const {
  return epd::LayoutOf(group_, job_, rank, RegionStorage::kDeviceWorker);
}

DevicePointer RowMoves::Out(const MovePlaces& places, size_t rank) const {
  const MovePart& part = job_.parts[rank];
  return places.arenas[static_cast<size_t>(part.arena)] + part.out_offset;
}

RoutingSpec RowMoves::DeviceSpec(const MovePlaces& places) const {
  RoutingSpec spec = spec_;
  if (spec.expert_owner != nullptr) spec.expert_owner = At<int32_t>(places.device, layout_.owners);
  return spec;
}

MoveSteps RowMoves::Steps(const MovePlaces& places, const DeviceShape& device) const {
  if (job_.kind == shm::Kind::kPrepare) return Prepare(places, device);
  WriteTables(places);
  MoveSteps steps;
  steps.before.Copy(places.device, places.host_on_device, layout_.tables_bytes);
  steps.before.Fill(places.device + layout_.reports, 0xff, num_ranks() * sizeof(ReportWord));
  VerifyPlans(places, device, steps.before);
  StreamSteps& last = spans() ? steps.after : steps.before;
  if (spans()) steps.exchange = Exchange(places);
  if (!scatters()) {
    if (spans()) PackMessages(places, device, steps.before);
    if (spans()) FindPackedRows(places, device, steps.before);
    Gather(places, device, last);
  } else if (spans()) {
    PushToLandings(places, device, steps.before);
    if (reads()) ReadRows(places, device, steps.before);
    ExpandLandings(places, device, steps.after);
  } else {
    ClearPadding(places, device, steps.before);
    ReadRows(places, device, steps.before);
  }
  TakeFindings(places, device, last);
  return steps;
}

void RowMoves::WriteTables(const MovePlaces& places) const {
  if (!group_.expert_owner.empty()) {
    std::memcpy(places.host + layout_.owners, group_.expert_owner.data(),
                group_.expert_owner.size() * sizeof(int32_t));
  }
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    const uint8_t* const plan =
        sees_plan(rank) ? At<const uint8_t>(places.device, layout_.plans[rank]) : nullptr;
    std::memcpy(places.host + layout_.plans_of + rank * sizeof plan, &plan, sizeof plan);
  }
  WritePlanWork(places);
  if (spans() && scatters()) WriteLandingTables(places);
  if (spans() && !scatters()) WritePackedTables(places);
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    uint8_t* const table = places.host + layout_.targets;
    if (scatters()) {
      // What is for a rank of another worker is that worker's to take.
      RecvTarget target;
      if (local(rank)) {
        target = {At<uint8_t>(Out(places, rank), 0), WeightsOut(places, rank),
                  static_cast<int64_t>(job_.parts[rank].recv_capacity)};
      }
      std::memcpy(table + rank * sizeof target, &target, sizeof target);
    } else {
      const GatherSource source = SourceAt(places, rank);
      std::memcpy(table + rank * sizeof source, &source, sizeof source);
    }
  }
}

void RowMoves::TakeFindings(const MovePlaces& places, const DeviceShape& device,
                            StreamSteps& steps) const {
  const DevicePointer host = places.host_on_device;
  TakeResults::Args args;
  args.reports = At<ReportWord>(places.device, layout_.reports);
  args.plans = At<const uint8_t*>(places.device, layout_.plans_of);
  args.num_ranks = spec_.num_ranks;
  args.num_experts = spec_.num_experts;
  args.reports_out = At<ReportWord>(host, layout_.host_results);
  args.headers_out = At<PlanHeader>(host, HeadersAt());
  args.counts_out = At<int32_t>(host, CountsAt());
  steps.Launch(TakeResultsLaunches(args, device));
}

}  // namespace epd::cuda
