// How large the parts of one rank's region of an operation are, and where they begin: sizes are added up here and
// nowhere else. proto/epd/v1/region_layout.h says what stands in each part.
#pragma once

#include <cstdint>

#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Which memory holds the region, and who moves its rows.
enum class RegionStorage {
  kHostRanks,   // Host memory, by the ranks: a stage alone.
  kHostWorker,  // Host memory, by the worker: the used part of the plan, a stage, the output.
  kDeviceRanks,  // Device memory, by the ranks' kernels: a stage, in which all stands in fixed places.
  kDeviceWorker,  // Device memory, by the worker's kernels: the whole plan, the rows in, the rows out.
};
constexpr RegionStorage MakeStorage(bool on_device, bool worker_executor) {
  if (on_device)
    return worker_executor ? RegionStorage::kDeviceWorker : RegionStorage::kDeviceRanks;
  return worker_executor ? RegionStorage::kHostWorker : RegionStorage::kHostRanks;
}

// What sizes depend on; prepare's on the first two alone. Checked by the caller against the group.
struct RegionShape {
  uint64_t num_ranks = 0;
  uint64_t num_experts = 0;
  // Of kDeviceRanks the most that the group may have of the three: T_max, recv_capacity_per_rank, K_max.
  uint64_t num_tokens = 0;  // T
  uint64_t num_slots = 0;   // C
  uint64_t top_k = 0;
  uint64_t row_bytes = 0;
  bool has_weights = false;
  uint64_t plan_bytes = 0;  // Of the plan's used part in host memory, of all of it on a device.
  // Of stages in host memory:
  uint64_t num_routes = 0;       // N of a scatter; T * K before the plan is known.
  uint64_t num_live = 0;         // Rows that a gather stages; C before the plan is known.
  uint64_t counted_experts = 0;  // Of a gather between nodes: whose counts stand behind its stage.
};

// Bytes and counts. Offsets are from the start of the region unless they say otherwise.
struct RegionLayout {
  uint64_t plan_bytes = 0;
  uint64_t stage_at = 0;
  uint64_t rows = 0;  // What a rank gives, and with it
  uint64_t num_weights = 0;
  uint64_t weights_at = 0;    // ... from the start of a stage in device memory.
  uint64_t counts_bytes = 0;  // Behind the stage.
  uint64_t stage_bytes = 0;   // Up to the end of all that is staged: SlotRequest's.
  uint64_t out_rows = 0;      // What a rank gets.
  uint64_t num_out_weights = 0;
  uint64_t out_weights_at = 0;  // From the start of the output.
  uint64_t out_at = 0;
  uint64_t out_bytes = 0;

  uint64_t bare_stage_bytes() const { return stage_bytes - counts_bytes - stage_at; }
  uint64_t bytes() const { return out_at + out_bytes; }
};

// K_max: the most experts of a token that calls of a group may have whose own `top_k` is 0 where it does not say it.
constexpr uint64_t MostTopK(uint64_t top_k) { return top_k == 0 ? limits::kTopK : top_k; }

RegionLayout MakeLayout(shm::Kind kind, const RegionShape& shape, RegionStorage storage);

}  // namespace epd
