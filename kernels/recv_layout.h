// Where rows land in a rank's receive buffer: pure functions of the counts and the spec.
//
// The buffer of a rank is expert-major: one zone per local expert, in ascending order, back to
// back from slot 0, each as long as its routes rounded up to a multiple of the alignment (no
// routes, no zone). Inside a zone rows stand by (source rank, token, k). `counts` is always
// [R, E]: counts[s, e] is the number of routes of rank s to expert e.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/routing_spec.h"

namespace epd {

// Smallest multiple of `alignment` (a power of two) that is >= `n`.
EPD_HOST_DEVICE constexpr std::int64_t AlignUp(std::int64_t n, std::int64_t alignment) {
  return (n + alignment - 1) & ~(alignment - 1);
}

// counts[source, expert], in rows.
EPD_HOST_DEVICE inline std::int64_t RowsOf(const RoutingSpec& spec, const std::int32_t* counts,
                                           std::int32_t source, std::int32_t expert) {
  return counts[static_cast<std::int64_t>(source) * spec.num_experts + expert];
}

// Live rows of an expert from the ranks before `source_end`, in rows. With source_end == R: all.
EPD_HOST_DEVICE inline std::int64_t ExpertRows(const RoutingSpec& spec, const std::int32_t* counts,
                                               std::int32_t expert, std::int32_t source_end) {
  std::int64_t rows = 0;
  for (std::int32_t s = 0; s < source_end; ++s) rows += RowsOf(spec, counts, s, expert);
  return rows;
}

// Length of an expert's zone, padding included, in slots.
EPD_HOST_DEVICE inline std::int64_t ZoneSlots(const RoutingSpec& spec, const std::int32_t* counts,
                                              std::int32_t expert) {
  return AlignUp(ExpertRows(spec, counts, expert, spec.num_ranks), EffectiveAlignment(spec));
}

// First slot of an expert's zone in its owner's buffer.
EPD_HOST_DEVICE inline std::int64_t ZoneBegin(const RoutingSpec& spec, const std::int32_t* counts,
                                              std::int32_t expert) {
  const std::int32_t owner = ExpertOwner(spec, expert);
  std::int64_t slot = 0;
  for (std::int32_t e = OwnedExpertRange(spec, owner).begin; e < expert; ++e) {
    if (ExpertOwner(spec, e) == owner) slot += ZoneSlots(spec, counts, e);
  }
  return slot;
}

// First slot of the rows of `source` inside an expert's zone, in its owner's buffer.
EPD_HOST_DEVICE inline std::int64_t SourceBegin(const RoutingSpec& spec, const std::int32_t* counts,
                                                std::int32_t expert, std::int32_t source) {
  return ZoneBegin(spec, counts, expert) + ExpertRows(spec, counts, expert, source);
}

// total_recv of `rank`: slots of all its zones, padding included, before any drop.
EPD_HOST_DEVICE inline std::int64_t TotalRecv(const RoutingSpec& spec, const std::int32_t* counts,
                                              std::int32_t rank) {
  const ExpertRange range = OwnedExpertRange(spec, rank);
  std::int64_t slots = 0;
  for (std::int32_t e = range.begin; e < range.end; ++e) {
    if (ExpertOwner(spec, e) == rank) slots += ZoneSlots(spec, counts, e);
  }
  return slots;
}

// Slots that hold data in a receive buffer of `capacity` slots: what combine stages and reads.
EPD_HOST_DEVICE inline std::int64_t LiveSlots(std::int64_t total_recv, std::int64_t capacity) {
  return total_recv < capacity ? total_recv : capacity;
}

// Routes from `source` to all experts of `destination`, in rows, before any drop.
EPD_HOST_DEVICE inline std::int64_t RowsBetween(const RoutingSpec& spec, const std::int32_t* counts,
                                                std::int32_t source, std::int32_t destination) {
  const ExpertRange range = OwnedExpertRange(spec, destination);
  std::int64_t rows = 0;
  for (std::int32_t e = range.begin; e < range.end; ++e) {
    if (ExpertOwner(spec, e) == destination) rows += RowsOf(spec, counts, source, e);
  }
  return rows;
}

}  // namespace epd
