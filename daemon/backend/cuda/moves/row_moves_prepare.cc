// A prepare: what all ranks have counted, to each rank of this worker and to the host.
#include <vector>

#include "daemon/backend/cuda/moves/device_tables.h"
#include "daemon/backend/cuda/moves/row_moves.h"

namespace epd::cuda {

// The host's copy of the counts stands where the device's does, and the tables behind it.
void RowMoves::ArrangePrepare() {
  ScratchCursor cursor(nullptr);
  layout_.counts = Take<uint8_t>(cursor, static_cast<int64_t>(counts_bytes()));
  layout_.count_rows = Take<GatherCounts::Args>(cursor, static_cast<int64_t>(num_ranks()));
  // Of each of this worker's ranks, of the host, and the device's.
  layout_.count_outs = Take<int32_t*>(cursor, num_locals() + 2);
  layout_.tables_bytes = cursor.used() - layout_.count_rows;
  room_ = {.device_bytes = cursor.used(), .host_bytes = cursor.used()};
}

MoveSteps RowMoves::Prepare(const MovePlaces& places, const DeviceShape& device) const {
  auto* const all = At<int32_t>(places.device, layout_.counts);
  std::vector<int32_t*> outs;
  if (spans())
    outs.push_back(all);  // Out of which rows go to other workers, and where theirs come.
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    if (local(rank)) outs.push_back(At<int32_t>(Out(places, rank), 0));
  }
  outs.push_back(At<int32_t>(places.host_on_device, layout_.counts));
  Write(places.host + layout_.count_outs, outs);

  std::vector<GatherCounts::Args> seen;
  std::vector<GatherCounts::Args> sent;
  for (size_t rank = 0; rank < num_ranks(); ++rank) {
    GatherCounts::Args row;
    row.outs = At<int32_t* const>(places.device, layout_.count_outs);
    row.num_outs = static_cast<int32_t>(outs.size());
    row.num_experts = spec_.num_experts;
    row.at = static_cast<int64_t>(rank) * spec_.num_experts;
    if (sees_plan(rank)) {
      row.from = At<const int32_t>(Region(places, rank), 0);
      seen.push_back(row);
    } else {
      row.from = all + row.at;
      ++row.outs;
      --row.num_outs;
      sent.push_back(row);
    }
  }
  const uint64_t sent_at = layout_.count_rows + seen.size() * sizeof(GatherCounts::Args);

  MoveSteps steps;
  steps.before.Copy(places.device + layout_.count_rows, places.host_on_device + layout_.count_rows,
                    layout_.tables_bytes);
  steps.before.Launch(GatherCountsLaunches(WriteEach(places, layout_.count_rows, seen), device));
  if (!spans()) return steps;
  steps.exchange = Exchange(places);
  steps.after.Launch(GatherCountsLaunches(WriteEach(places, sent_at, sent), device));
  return steps;
}

}  // namespace epd::cuda
