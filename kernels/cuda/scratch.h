// Device memory that the steps use among themselves: how much, and what lies where.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/build_plan.h"
#include "kernels/cuda/land_rows.h"
#include "kernels/cuda/push_landing.h"

namespace epd::cuda {

// Hands out 16-byte aligned pieces of a block, one after the other. Over a null base it only
// measures, so that size and layout come from the same lines.
class ScratchCursor {
 public:
  explicit ScratchCursor(void* base) : base_(static_cast<std::uint8_t*>(base)) {}

  template <typename T>
  T* Take(std::int64_t count) {
    const std::size_t at = used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 15) & ~std::size_t{15};
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* base_;
  std::size_t used_ = 0;
};

// For a build of up to T_max tokens; sums also serve VerifyPlanLaunches.
inline PlanScratch TakePlanScratch(const RoutingSpec& spec, ScratchCursor& cursor) {
  const Tiling tiling{spec.max_tokens, spec.top_k, spec.num_experts};
  PlanScratch scratch;
  scratch.tiles = cursor.Take<std::int32_t>(tiling.NumCounts());
  scratch.own_counts = cursor.Take<std::int32_t>(spec.num_experts);
  scratch.expert_rows = cursor.Take<std::int64_t>(spec.num_experts);
  scratch.expert_rows_before = cursor.Take<std::int64_t>(spec.num_experts);
  scratch.rank_routes = cursor.Take<std::int64_t>(spec.num_ranks);
  scratch.sums = cursor.Take<std::uint64_t>(PlanSumUnits(spec));
  return scratch;
}

// Fills the scratch pointers of a push of up to T_max tokens.
inline void TakePushScratch(const RoutingSpec& spec, ScratchCursor& cursor, PushLandingArgs* args) {
  const Tiling tiling{spec.max_tokens, spec.top_k, spec.num_ranks};
  args->tiles = cursor.Take<std::int32_t>(tiling.NumCounts());
  args->num_landed = cursor.Take<std::int32_t>(spec.num_ranks);
  args->rows_offset = cursor.Take<std::uint64_t>(spec.num_ranks);
  args->places = cursor.Take<LandingPlace>(spec.max_tokens * spec.top_k);
}

// Fills the scratch pointers of a receive of `capacity` slots; index.num_locals is set.
inline void TakeLandScratch(const RoutingSpec& spec, ScratchCursor& cursor, LandRowsArgs* args) {
  const std::int64_t locals = args->index.num_locals;
  args->index.local_experts = cursor.Take<std::int32_t>(locals);
  args->index.zones = cursor.Take<std::int64_t>(locals + 1);
  args->index.segments = cursor.Take<std::int64_t>(locals * spec.num_ranks);
  args->num_rows = cursor.Take<std::int64_t>(spec.num_ranks);
  args->marks = cursor.Take<std::int64_t>(args->capacity);
}

}  // namespace epd::cuda
