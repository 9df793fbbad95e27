// What is read before an operation whose sizes follow from its plans: the counts of all, and of a scatter how many tokens each
// of this worker's ranks has for each other rank.
#include <algorithm>

#include "daemon/backend/cuda/moves/device_tables.h"
#include "daemon/backend/cuda/moves/row_moves.h"
#include "kernels/cuda/landing.h"

namespace epd::cuda {

// In device memory: what of one rank's plan is counted, where no client can change it meanwhile, and what the kernels need.
struct RowMoves::Counting {
  uint64_t table = 0;  // [T, K]
  uint64_t tiles = 0;
  uint64_t tokens_to = 0;  // [R]
  uint64_t report = 0;
};

RowMoves::Counting RowMoves::TakeCounting(ScratchCursor& cursor, size_t rank) const {
  const Tiling tiling = DestinationTiling(rank);
  return {.table = Take<PlanRoute>(cursor, tiling.num_tokens * tiling.top_k),
          .tiles = Take<int32_t>(cursor, tiling.NumCounts()),
          .tokens_to = Take<int32_t>(cursor, tiling.num_columns),
          .report = Take<ReportWord>(cursor, 1)};
}

Tiling RowMoves::DestinationTiling(size_t rank) const {
  return {static_cast<int64_t>(job_.parts[rank].num_tokens), spec_.top_k, spec_.num_ranks};
}

MoveRoom RowMoves::read_room() const {
  MoveRoom room = {.device_bytes = 0, .host_bytes = num_ranks() * counts_bytes()};
  if (!scatters()) return room;
  ScratchCursor cursor(nullptr);
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    TakeCounting(cursor, rank);
    room.host_bytes += num_ranks() * sizeof(int32_t);
  }
  room.device_bytes = cursor.used();
  return room;
}

StreamSteps RowMoves::Read(const MovePlaces& places, const DeviceShape& device) const {
  StreamSteps steps;
  ScratchCursor cursor(nullptr);
  uint64_t tokens_at = num_ranks() * counts_bytes();
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (!local(rank)) continue;
    const DevicePointer plan = Region(places, rank);
    steps.Copy(places.host_on_device + rank * counts_bytes(),
               plan + PlanCountsOffset(spec_.num_experts), counts_bytes());
    if (!scatters()) continue;
    const Counting at = TakeCounting(cursor, rank);
    const Tiling tiling = DestinationTiling(rank);
    steps.Copy(places.device + at.table, plan + PlanTableOffset(spec_.num_ranks, spec_.num_experts),
               static_cast<uint64_t>(tiling.num_tokens * tiling.top_k) * sizeof(PlanRoute));
    // Nobody reads the report: who moves rows by this plan checks it again.
    auto* report = At<ReportWord>(places.device, at.report);
    steps.Launch(CountDestinationsLaunches({.routes = {At<const PlanRoute>(places.device, at.table),
                                                       spec_.top_k, spec_.num_ranks, report},
                                            .tiling = tiling,
                                            .tiles = At<int32_t>(places.device, at.tiles),
                                            .totals = At<int32_t>(places.device, at.tokens_to)},
                                           device));
    const uint64_t bytes = num_ranks() * sizeof(int32_t);
    steps.Copy(places.host_on_device + tokens_at, places.device + at.tokens_to, bytes);
    tokens_at += bytes;
  }
  return steps;
}

std::vector<uint32_t> RowMoves::TokensIn(const uint8_t* host,
                                         const std::vector<int32_t>& counts) const {
  std::vector<uint32_t> tokens;
  if (!scatters()) return tokens;
  const uint8_t* at = host + num_ranks() * counts_bytes();
  for (int32_t source = 0; source < spec_.num_ranks; ++source) {
    if (!local(static_cast<size_t>(source))) continue;
    for (int32_t destination = 0; destination < spec_.num_ranks; ++destination) {
      int32_t found = 0;
      std::memcpy(&found, at, sizeof found);
      at += sizeof found;
      const int64_t most = LandingBound(spec_, counts.data(), source, destination);
      tokens.push_back(static_cast<uint32_t>(std::clamp<int64_t>(found, 0, most)));
    }
  }
  return tokens;
}

}  // namespace epd::cuda
