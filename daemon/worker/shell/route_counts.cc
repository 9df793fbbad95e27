#include "daemon/worker/shell/route_counts.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "daemon/worker/engine/mixed_hash.h"
#include "kernels/route_slice.h"
#include "proto/epd/v1/route_counts.h"

namespace epd {

RouteCounter::Slice RouteCounter::Allow(const CountRoutes& prepare, int num_arenas, absl::Time now,
                                        const Routes& routes) {
  Allowance& allowance = of_uid_.try_emplace(prepare.uid, kBurst, kPerSecond).first->second;
  const uint64_t cost_of_expert = static_cast<uint64_t>(num_arenas) + kCostOfExpert;
  const uint64_t max_experts = std::max<uint64_t>(allowance.Left(now) / cost_of_expert, 1);
  const uint64_t num_experts = prepare.num_experts;
  const uint64_t num_slices = (num_experts + max_experts - 1) / max_experts;
  // Not in turn: a model's layers prepare in turn, too, and each would be seen in the same slices again and again.
  const uint64_t at = Mixed(0, routes.num_prepares) % num_slices;
  const Slice slice{.begin = static_cast<uint32_t>(at * num_experts / num_slices),
                    .end = static_cast<uint32_t>((at + 1) * num_experts / num_slices),
                    .weight = num_slices};
  allowance.Take((slice.end - slice.begin) * cost_of_expert);
  return slice;
}

RouteCounter::Slice RouteCounter::ToldSlice(const CountRoutes& prepare) {
  const RouteSlice slice = RouteSliceOf(prepare.plan_id, static_cast<int32_t>(prepare.num_experts),
                                        static_cast<int32_t>(shm::kMaxRouteCounts));
  return {.begin = static_cast<uint32_t>(slice.begin),
          .end = static_cast<uint32_t>(slice.end),
          .weight = static_cast<uint64_t>(slice.num_slices)};
}

bool RouteCounter::ReadCounts(const CountRoutes& prepare, const Slice& slice,
                              const ArenaSet& arenas, int arena) {
  if (prepare.told.empty()) {
    const absl::Span<char> bytes(reinterpret_cast<char*>(counts_.data()),
                                 counts_.size() * sizeof(int32_t));
    const uint64_t offset =
        prepare.offsets.at(static_cast<size_t>(arena)) + uint64_t{slice.begin} * sizeof(int32_t);
    return arenas.Read(arena, offset, bytes).ok();
  }
  const auto rank = absl::c_find(prepare.arena_of_rank, arena) - prepare.arena_of_rank.begin();
  if (static_cast<size_t>(rank) >= prepare.told.size()) return false;
  const std::vector<uint16_t>& told = prepare.told[static_cast<size_t>(rank)];
  if (told.size() < counts_.size()) return false;
  std::copy_n(told.begin(), counts_.size(), counts_.begin());
  return true;
}

void RouteCounter::Count(const CountRoutes& prepare, const GroupSpec& spec, const ArenaSet& arenas,
                         absl::Time now, Routes& routes) {
  if (prepare.num_experts == 0) return;
  const size_t num_ranks = prepare.arena_of_rank.size();
  routes.of_expert.resize(prepare.num_experts);
  routes.between_ranks.resize(num_ranks * num_ranks);
  const Slice slice =
      prepare.told.empty() ? Allow(prepare, arenas.num_arenas(), now, routes) : ToldSlice(prepare);
  ++routes.num_prepares;
  if (slice.weight > 1) ++routes.num_estimated;
  const uint32_t num_read = slice.end - slice.begin;
  runs_.clear();
  for (uint32_t e = 0; e < num_read; ++e) {
    const uint32_t owner = ExpertOwner(spec, slice.begin + e).value;
    if (runs_.empty() || runs_.back().owner != owner) runs_.push_back({e, e, owner});
    runs_.back().end = e + 1;
  }
  counts_.resize(num_read);
  here_.assign(num_read, 0);
  elsewhere_.assign(num_read, 0);
  for (int arena = 0; arena < arenas.num_arenas(); ++arena) {
    if (!ReadCounts(prepare, slice, arenas, arena)) continue;
    const auto rank = absl::c_find(prepare.arena_of_rank, arena);
    const bool is_here = rank != prepare.arena_of_rank.end();
    const auto row = static_cast<size_t>(rank - prepare.arena_of_rank.begin());
    AddRow(slice.weight, is_here ? &routes.between_ranks[row * num_ranks] : nullptr);
  }
  AddExperts(prepare, slice, routes);
}

void RouteCounter::Count(const DirectOutcome& prepare, const GroupSpec& spec, Routes& routes) {
  const uint32_t rank = prepare.rank.value;
  if (!prepare.ended || prepare.routes.size() != spec.num_experts || rank >= spec.num_ranks) return;
  routes.of_expert.resize(spec.num_experts);
  routes.between_ranks.resize(size_t{spec.num_ranks} * spec.num_ranks);
  uint64_t* const to_ranks = &routes.between_ranks[size_t{rank} * spec.num_ranks];
  for (uint32_t e = 0; e < spec.num_experts; ++e) {
    routes.of_expert[e] += prepare.routes[e];
    to_ranks[ExpertOwner(spec, e).value] += prepare.routes[e];
  }
  routes.padded_rows += prepare.padded_rows;
  if (rank == 0) ++routes.num_prepares;
}

// `to_ranks`: [num_ranks] of the rank whose counts these are; null: another worker serves it, which counts it.
void RouteCounter::AddRow(uint64_t weight, uint64_t* to_ranks) {
  uint64_t* const sums = to_ranks == nullptr ? elsewhere_.data() : here_.data();
  for (const Run& run : runs_) {
    uint64_t sum = 0;
    for (uint32_t e = run.begin; e < run.end; ++e) {
      // A client may have staged anything; a figure for people must not wrap because of it.
      const auto count = static_cast<uint32_t>(std::max(counts_[e], 0));
      sums[e] += count;
      sum += count;
    }
    if (to_ranks != nullptr) to_ranks[run.owner] += sum * weight;
  }
}

void RouteCounter::AddExperts(const CountRoutes& prepare, const Slice& slice,
                              Routes& routes) const {
  const uint64_t alignment = std::max(prepare.alignment, 1U);
  for (const Run& run : runs_) {
    const bool is_here =
        run.owner < prepare.arena_of_rank.size() && prepare.arena_of_rank[run.owner] >= 0;
    for (uint32_t e = run.begin; e < run.end; ++e) {
      routes.of_expert[slice.begin + e] += here_[e] * slice.weight;
      if (!is_here || alignment == 1) continue;
      const uint64_t over = (here_[e] + elsewhere_[e]) % alignment;
      if (over > 0) routes.padded_rows += (alignment - over) * slice.weight;
    }
  }
}

}  // namespace epd
