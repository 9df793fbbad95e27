// What an owner of expert rows leaves in its staging region for gather and reduce: byte layout.
//
//   GatherStageHeader
//   float weights[live]         only with weights, at weights_offset
//   rows[live][row_bytes]       slots 0 .. live-1 of the receive buffer, at rows_offset, aligned
//                               to 64 bytes; padding slots are unspecified and never read
//
// live = min(total_recv, C). Readers treat every byte as hostile, as for scatter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/recv_layout.h"
#include "kernels/scatter_stage.h"

namespace epd {

inline constexpr std::uint64_t kGatherStageMagic = 0x4854414744504531;  // "1EPDGATH" in memory
inline constexpr std::uint32_t kGatherStageVersion = 1;

struct GatherStageHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rank;         // of the owner
  std::uint64_t plan_id;      // of the plan that the slots come from
  std::uint32_t num_rows;     // live
  std::uint32_t has_weights;  // 0 or 1
  std::uint64_t row_bytes;
  std::uint64_t weights_offset;  // bytes from the start of the stage; 0 without weights
  std::uint64_t rows_offset;     // the same
  std::uint64_t total_bytes;
};
static_assert(sizeof(GatherStageHeader) == 64 && offsetof(GatherStageHeader, row_bytes) == 32);

// What the size of a stage depends on.
struct GatherStageShape {
  std::int64_t num_rows = 0;  // live; C before the plan is known
  std::uint64_t row_bytes = 0;
  bool has_weights = false;
};

EPD_HOST_DEVICE inline std::size_t GatherRowsOffset(const GatherStageShape& shape) {
  const std::int64_t weights_bytes = shape.has_weights ? shape.num_rows * 4 : 0;
  return static_cast<std::size_t>(AlignUp(
      static_cast<std::int64_t>(sizeof(GatherStageHeader)) + weights_bytes, kStageRowsAlignment));
}

// Bytes to reserve for a gather stage.
EPD_HOST_DEVICE inline std::size_t GatherStageBytes(const GatherStageShape& shape) {
  return GatherRowsOffset(shape) + static_cast<std::size_t>(shape.num_rows) * shape.row_bytes;
}

}  // namespace epd
