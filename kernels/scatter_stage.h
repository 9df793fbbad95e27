// What a sender leaves in its staging region for scatter: the byte layout, host and device.
//
//   ScatterStageHeader
//   u32 route_begin[R + 1]      routes for rank d are [route_begin[d], route_begin[d + 1])
//   StageRoute routes[N]        by (destination rank, expert, token, k), at routes_offset
//   rows[T][row_bytes]          each token once, at rows_offset, aligned to 64 bytes
//
// Readers treat every byte as hostile: another process may write it while it is read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/recv_layout.h"

namespace epd {

inline constexpr std::uint64_t kScatterStageMagic = 0x4341545344504531;  // "1EPDSTAC" in memory
inline constexpr std::uint32_t kScatterStageVersion = 1;
inline constexpr std::int64_t kStageRowsAlignment = 64;  // bytes

struct ScatterStageHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rank;     // of the sender
  std::uint64_t plan_id;  // of the plan that the routes come from
  std::uint32_t num_ranks;
  std::uint32_t num_rows;     // T
  std::uint32_t num_routes;   // N
  std::uint32_t has_weights;  // 1: StageRoute::weight is meant; 0: it is 0
  std::uint64_t row_bytes;
  std::uint64_t routes_offset;  // bytes from the start of the stage
  std::uint64_t rows_offset;    // the same
  std::uint64_t total_bytes;
};
static_assert(sizeof(ScatterStageHeader) == 72 && offsetof(ScatterStageHeader, row_bytes) == 40);

struct StageRoute {
  std::uint32_t row;   // token of the sender
  std::uint32_t slot;  // in the destination's receive buffer, before any drop
  float weight;
};
static_assert(sizeof(StageRoute) == 12);

// What the size of a stage depends on.
struct ScatterStageShape {
  std::int64_t num_tokens = 0;  // T
  std::int64_t num_routes = 0;  // N; T * K before the plan is known
  std::int32_t num_ranks = 0;   // R
  std::uint64_t row_bytes = 0;
};

EPD_HOST_DEVICE inline std::size_t ScatterRoutesOffset(std::int32_t num_ranks) {
  return sizeof(ScatterStageHeader) + (static_cast<std::size_t>(num_ranks) + 1) * 4;
}
EPD_HOST_DEVICE inline std::size_t ScatterRowsOffset(const ScatterStageShape& shape) {
  return static_cast<std::size_t>(
      AlignUp(static_cast<std::int64_t>(ScatterRoutesOffset(shape.num_ranks)) +
                  shape.num_routes * static_cast<std::int64_t>(sizeof(StageRoute)),
              kStageRowsAlignment));
}

// Bytes to reserve for a scatter stage.
EPD_HOST_DEVICE inline std::size_t ScatterStageBytes(const ScatterStageShape& shape) {
  return ScatterRowsOffset(shape) + static_cast<std::size_t>(shape.num_tokens) * shape.row_bytes;
}

}  // namespace epd
