// Where one rank's rows for another land in the other's staging: byte layout.
//
//   LandingHeader
//   LandingEntry entries[max_rows][K]  slot and weight of each route of the landed token
//   rows[max_rows][row_bytes]          each token once, however many of the rank's experts it goes to
//
// max_rows is what both sides were given: as many rows as there will be where the sender has told it,
// else LandingBound, which both can compute from the counts. Rows stand in token order. Receivers
// treat every byte as hostile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/recv_layout.h"
#include "kernels/routing_spec.h"
#include "kernels/scatter_stage.h"

namespace epd::cuda {

inline constexpr std::uint64_t kLandingMagic = 0x444e414c44504531;  // "1EPDLAND" in memory

struct LandingHeader {
  std::uint64_t magic;
  std::uint64_t plan_id;    // of the sender's plan
  std::uint64_t row_bytes;  //
  std::uint32_t rank;       // of the sender
  std::uint32_t num_rows;   // landed; <= max_rows
  std::uint64_t reserved[4];
};
static_assert(sizeof(LandingHeader) == 64);

// One route of a landed token; slot -1 where the route leads to another rank or nowhere.
struct LandingEntry {
  std::int32_t slot;
  float weight;
};
static_assert(sizeof(LandingEntry) == 8);

// In place of max_rows, on both sides: rows of this pair do not land. The receiver reads them where they lie, with a push of
// its own (push_direct.h).
inline constexpr std::int64_t kReadWhereTheyLie = -1;

// Rows that `source` lands at `destination`, at most.
EPD_HOST_DEVICE inline std::int64_t LandingBound(const RoutingSpec& spec,
                                                 const std::int32_t* counts, std::int32_t source,
                                                 std::int32_t destination) {
  const std::int64_t routes = RowsBetween(spec, counts, source, destination);
  return routes < spec.max_tokens ? routes : spec.max_tokens;
}

EPD_HOST_DEVICE inline std::size_t LandingRowsOffset(std::int64_t max_rows, std::int32_t top_k) {
  return static_cast<std::size_t>(
      AlignUp(static_cast<std::int64_t>(sizeof(LandingHeader)) +
                  max_rows * top_k * static_cast<std::int64_t>(sizeof(LandingEntry)),
              kStageRowsAlignment));
}

// Bytes of a landing for `max_rows` rows: what a receiver sets aside for one source.
EPD_HOST_DEVICE inline std::size_t LandingBytes(std::int64_t max_rows, std::int32_t top_k,
                                                std::uint64_t row_bytes) {
  return LandingRowsOffset(max_rows, top_k) + static_cast<std::size_t>(max_rows) * row_bytes;
}

}  // namespace epd::cuda
