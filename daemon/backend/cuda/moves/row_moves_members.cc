// The part of a move that has to do with other workers.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/moves/device_tables.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "kernels/cuda/scratch.h"

namespace epd::cuda {
TrafficShape RowMoves::Shape() const {
  TrafficShape shape{.kind = job_.kind,
                     .spec = spec_,
                     .row_bytes = job_.row_bytes,
                     .has_weights = job_.has_weights,
                     .member_of_rank = group_.member_of_rank,
                     .recv_capacity = {}};
  for (const MovePart& part : job_.parts) {
    shape.recv_capacity.push_back(part.recv_capacity);
    if (reads()) shape.mapped.push_back(part.local || part.mapped);
  }
  return shape;
}

absl::Status RowMoves::CheckImages() const {
  if (scatters() || job_.kind == shm::Kind::kPrepare) return absl::OkStatus();
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (sees_plan(rank)) continue;
    const MovePart& part = job_.parts[rank];
    const uint64_t needed = LayoutOf(rank).stage_bytes;
    if (part.stage_bytes >= needed) continue;
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " stages ", needed,
                                                   " bytes, its region on this node has ",
                                                   part.stage_bytes));
  }
  return absl::OkStatus();
}

void RowMoves::WriteLandingTables(const MovePlaces& places) const {
  const DevicePointer base = places.device + layout_.landings;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    for (size_t other = 0; other < num_ranks(); ++other) {
      const LandingPlaceOnDevice& to = LandingOf(rank, other);
      const LandingTarget target{to.bytes == 0 ? nullptr : At<uint8_t>(base, to.offset), to.bytes,
                                 to.max_rows};
      std::memcpy(places.host + layout_.landing_targets[rank] + other * sizeof target, &target,
                  sizeof target);
      const LandingPlaceOnDevice& from = LandingOf(other, rank);
      const LandingSource source{from.bytes == 0 ? nullptr : At<const uint8_t>(base, from.offset),
                                 from.bytes, from.max_rows};
      std::memcpy(places.host + layout_.landing_sources[rank] + other * sizeof source, &source,
                  sizeof source);
    }
  }
}

void RowMoves::WritePackedTables(const MovePlaces& places) const {
  int64_t first_run = 0;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    const PackedRows& packed = traffic_->packed[rank];
    FindPacked::Source source;
    if (local(rank)) {
      Write(places.host + layout_.pack_runs[rank], packed.packs);
    } else if (!mapped(rank)) {
      source = {first_run, static_cast<int64_t>(packed.unpacks.size())};
      Write(
          places.host + layout_.packed_runs + static_cast<uint64_t>(first_run) * sizeof(PackedRun),
          packed.unpacks);
      first_run += source.num_runs;
    }
    std::memcpy(places.host + layout_.packed_sources + rank * sizeof source, &source,
                sizeof source);
  }
}

GatherSource RowMoves::SourceAt(const MovePlaces& places, size_t rank) const {
  const auto* rows = At<const uint8_t>(Stage(places, rank), 0);
  if (sees_plan(rank)) {
    return {rows, WeightsIn(places, rank), static_cast<int64_t>(job_.parts[rank].recv_capacity),
            nullptr};
  }
  const PackedRows& packed = traffic_->packed[rank];
  const float* weights =
      job_.has_weights ? At<const float>(Stage(places, rank), packed.weights_at) : nullptr;
  return {rows, weights, packed.num_rows, nullptr};
}

void RowMoves::PackMessages(const MovePlaces& places, const DeviceShape& device,
                            StreamSteps& steps) const {
  std::vector<PackRowsArgs> packs;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    const PackedRows& packed = traffic_->packed[rank];
    PackRowsArgs args;
    args.runs = At<const PackRun>(places.device, layout_.pack_runs[rank]);
    args.num_runs = static_cast<int64_t>(packed.packs.size());
    args.num_rows = packed.num_rows;
    args.rows = At<const uint8_t>(Stage(places, rank), 0);
    args.weights = WeightsIn(places, rank);
    args.messages = At<uint8_t>(places.device, layout_.messages);
    args.row_bytes = job_.row_bytes;
    packs.push_back(args);
  }
  steps.Launch(PackRowsLaunches(WriteEach(places, layout_.packs, packs), device));
}

void RowMoves::FindPackedRows(const MovePlaces& places, const DeviceShape& device,
                              StreamSteps& steps) const {
  std::vector<FindPacked::Args> finds;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    FindPacked::Args args;
    args.table = TableOf(places, rank);
    args.num_routes = static_cast<int64_t>(job_.parts[rank].num_tokens) * spec_.top_k;
    args.num_ranks = spec_.num_ranks;
    args.sources = At<const FindPacked::Source>(places.device, layout_.packed_sources);
    args.runs = At<const PackedRun>(places.device, layout_.packed_runs);
    finds.push_back(args);
  }
  steps.Launch(FindPackedLaunches(WriteEach(places, layout_.finds, finds), device));
}

PushLandingArgs RowMoves::LandingArgs(const MovePlaces& places, size_t rank) const {
  ReportWord* report = At<ReportWord>(places.device, layout_.reports) + rank;
  PushLandingArgs args;
  ScratchCursor cursor(At<uint8_t>(places.device, layout_.push_scratch[rank]));
  TakePushScratch(spec_, cursor, &args);
  args.routes = {.table = TableOf(places, rank),
                 .top_k = spec_.top_k,
                 .num_ranks = spec_.num_ranks,
                 .report = report};
  args.tiling = {static_cast<int64_t>(job_.parts[rank].num_tokens), spec_.top_k, spec_.num_ranks};
  args.spec = DeviceSpec(places);
  args.rank = static_cast<int32_t>(rank);
  args.plan_id = job_.plan_id;
  args.rows = At<const uint8_t>(Stage(places, rank), 0);
  args.weights = WeightsIn(places, rank);
  args.row_bytes = job_.row_bytes;
  args.targets = At<const LandingTarget>(places.device, layout_.landing_targets[rank]);
  args.report = report;
  args.gate = {nullptr, report};
  return args;
}

void RowMoves::PushToLandings(const MovePlaces& places, const DeviceShape& device,
                              StreamSteps& steps) const {
  std::vector<PushLandingArgs> pushes;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (local(rank)) pushes.push_back(LandingArgs(places, rank));
  }
  steps.Launch(PushLandingLaunches(WriteEach(places, layout_.pushes, pushes), device));
}

void RowMoves::ExpandLandings(const MovePlaces& places, const DeviceShape& device,
                              StreamSteps& steps) const {
  std::vector<LandRowsArgs> lands;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    LandRowsArgs args = LandArgs(places, rank);
    args.plan_id = job_.plan_id;
    args.sources = At<const LandingSource>(places.device, layout_.landing_sources[rank]);
    args.num_rows = At<int64_t>(places.device, layout_.num_rows[rank]);
    args.marks = At<int64_t>(places.device, layout_.marks[rank]);
    lands.push_back(args);
  }
  steps.Launch(LandRowsLaunches(WriteEach(places, layout_.lands, lands), device));
}

std::vector<PeerBytes> RowMoves::Exchange(const MovePlaces& places) const {
  std::vector<PeerBytes> peers;
  for (const Transfer& transfer : traffic_->transfers) {
    DevicePointer at = transfer.offset;
    switch (transfer.place) {
      case TrafficPlace::kCounts:
        at += places.device + layout_.counts;
        break;
      case TrafficPlace::kLanding:
        at += places.device + layout_.landings;
        break;
      case TrafficPlace::kMessages:
        at += places.device + layout_.messages;
        break;
      case TrafficPlace::kImage:
        at += Stage(places, static_cast<size_t>(transfer.rank));
        break;
    }
    PeerBytes one{.peer = transfer.peer};
    if (transfer.sends) {
      one.send = At<const void>(at, 0);
      one.send_bytes = transfer.bytes;
    } else {
      one.receive = At<void>(at, 0);
      one.receive_bytes = transfer.bytes;
    }
    peers.push_back(one);
  }
  return peers;
}

}  // namespace epd::cuda
