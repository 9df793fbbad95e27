// What all ranks of a group agree on before they can plan: sizes, owners of experts, alignment.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/kernel_error.h"
#include "proto/epd/v1/limits.h"

namespace epd {

// Bounds that let kernels keep per-rank and per-route state on the stack.
inline constexpr std::int32_t kMaxRanks = limits::kPlanRanks;
inline constexpr std::int32_t kMaxTopK = limits::kTopK;
inline constexpr std::int32_t kMaxExperts = limits::kExperts;
inline constexpr std::int32_t kMaxAlignment = limits::kAlignment;

// Equal on every rank of a group. Plain data; `expert_owner` is borrowed.
struct RoutingSpec {
  std::int32_t num_ranks = 0;    // R, 1..kMaxRanks
  std::int32_t num_experts = 0;  // E, 1..kMaxExperts
  std::int32_t top_k = 0;        // K, 1..kMaxTopK
  std::int32_t alignment = 0;    // a, slots; 0 reads as 1, else a power of two
  std::int64_t max_tokens = 0;   // T_max, tokens a rank may send per call
  // [E] rank that owns each expert, or null for contiguous blocks: rank r owns the experts
  // [r*E/R, (r+1)*E/R), rounded down, which also serves E < R and E not divisible by R.
  const std::int32_t* expert_owner = nullptr;
};

// Checks ranges and the owner table.
//   kInvalidArgument  a field is out of range; the fault names it.
KernelError CheckRoutingSpec(const RoutingSpec& spec);

// Alignment with 0 read as 1.
EPD_HOST_DEVICE inline std::int64_t EffectiveAlignment(const RoutingSpec& spec) {
  return spec.alignment == 0 ? 1 : spec.alignment;
}

// First expert of the contiguous block of `rank`; `rank` == R gives E.
EPD_HOST_DEVICE inline std::int32_t ContiguousBegin(const RoutingSpec& spec, std::int32_t rank) {
  return static_cast<std::int32_t>(static_cast<std::int64_t>(rank) * spec.num_experts /
                                   spec.num_ranks);
}

// Rank that owns `expert`, 0 <= expert < E.
EPD_HOST_DEVICE inline std::int32_t ExpertOwner(const RoutingSpec& spec, std::int32_t expert) {
  if (spec.expert_owner != nullptr) return spec.expert_owner[expert];
  // The inverse of ContiguousBegin: the largest r with r*E/R rounded down <= expert.
  return static_cast<std::int32_t>(((static_cast<std::int64_t>(expert) + 1) * spec.num_ranks - 1) /
                                   spec.num_experts);
}

// The range of experts that holds all of `rank`'s: its block, or [0, E) under a table. Callers
// still compare ExpertOwner; this only keeps the contiguous case from scanning everything.
struct ExpertRange {
  std::int32_t begin;
  std::int32_t end;
};
EPD_HOST_DEVICE inline ExpertRange OwnedExpertRange(const RoutingSpec& spec, std::int32_t rank) {
  if (spec.expert_owner != nullptr) return {0, spec.num_experts};
  return {ContiguousBegin(spec, rank), ContiguousBegin(spec, rank + 1)};
}

// Number of experts that `rank` owns; its local experts are those, in ascending order.
EPD_HOST_DEVICE inline std::int32_t NumLocalExperts(const RoutingSpec& spec, std::int32_t rank) {
  const ExpertRange range = OwnedExpertRange(spec, rank);
  if (spec.expert_owner == nullptr) return range.end - range.begin;
  std::int32_t count = 0;
  for (std::int32_t e = range.begin; e < range.end; ++e) count += ExpertOwner(spec, e) == rank;
  return count;
}

}  // namespace epd
