// What gathered counts [R, E] come to, for the kernels' own sources: some ranks at a time, row by row, as they lie in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_error.h"
#include "kernels/recv_layout.h"
#include "kernels/routing_spec.h"

namespace epd {

// Rows of each expert, from all ranks and from those before one: [E] each.
struct ExpertSums {
  explicit ExpertSums(const RoutingSpec& spec)
      : of_all(static_cast<std::size_t>(spec.num_experts)) {}
  std::int64_t zone_slots(const RoutingSpec& spec, std::int32_t expert) const {
    return AlignUp(of_all[static_cast<std::size_t>(expert)], EffectiveAlignment(spec));
  }
  // Of one rank, row[E]. False: a count is negative, or there are more than `most` rows.
  bool AddRow(const std::int32_t* row, std::int64_t most) {
    std::int64_t sum = 0;
    std::int32_t signs = 0;
    for (std::size_t e = 0; e < of_all.size(); ++e) {
      signs |= row[e];
      sum += row[e];
      of_all[e] += row[e];
    }
    return signs >= 0 && sum <= most;
  }
  // Of all zones of each rank, into slots[R].
  void SlotsOfRanks(const RoutingSpec& spec, std::int64_t* slots) const {
    std::fill_n(slots, spec.num_ranks, 0);
    for (std::int32_t e = 0; e < spec.num_experts; ++e) {
      slots[ExpertOwner(spec, e)] += zone_slots(spec, e);
    }
  }

  std::vector<std::int64_t> of_all;
  std::vector<std::int64_t> before;
};

class CountReader {
 public:
  // The counts, and the table of owners, stay as they are for as long as this reads.
  CountReader(const RoutingSpec& spec, const std::int32_t* counts)
      : spec_(spec), counts_(counts), sums_(spec) {}

  // Adds up about `bytes` more, a rank's at least. False: that was all, or they are not sound.
  bool Some(std::uint64_t bytes) {
    const auto row_bytes = static_cast<std::uint64_t>(spec_.num_experts) * sizeof(std::int32_t);
    for (std::uint64_t left = bytes; sound_ && next_rank_ < spec_.num_ranks; left -= row_bytes) {
      sound_ = sums_.AddRow(RowOf(next_rank_++), spec_.max_tokens * spec_.top_k);
      if (left < 2 * row_bytes) break;
    }
    return sound_ && next_rank_ < spec_.num_ranks;
  }
  // Of all that were added up: as CheckCounts.
  KernelError Check() const;
  // Of all ranks'.
  const ExpertSums& sums() const { return sums_; }

 private:
  const std::int32_t* RowOf(std::int32_t rank) const {
    return counts_ + static_cast<std::int64_t>(rank) * spec_.num_experts;
  }

  RoutingSpec spec_;
  const std::int32_t* counts_;
  ExpertSums sums_;
  std::int32_t next_rank_ = 0;
  bool sound_ = true;
};

}  // namespace epd
