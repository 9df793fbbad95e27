// The routing plan that prepare leaves in handle_mem and that the four other operations read.
//
// A plan is a pure function of the counts [R, E], the spec and the rank's own topk_idx, and holds
// all that a rank needs to send rows and to fetch them back. Memory, in this order, gapless:
//
//   PlanHeader
//   PlanExpert experts[E]   where this rank's rows for each expert go
//   int32 counts[R, E]      routes of every rank to every expert
//   PlanRoute table[T, K]   destination rank and slot of each route of this rank
//   int32 order[N]          flat indices t*K + k of the N routes, by (destination rank, expert,
//                           token, k): the rows for one destination are one slice, and their
//                           slots ascend
//   zeros up to RoutingPlanBytes(spec), which depends on R, E, T_max and K only
//
// The prefix before the zeros is the *used part*; a copy of it is as good as the plan.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/data_type.h"
#include "kernels/host_device.h"
#include "kernels/kernel_error.h"
#include "kernels/recv_layout.h"
#include "kernels/routing_spec.h"

namespace epd {

inline constexpr std::uint64_t kPlanMagic = 0x4e414c5044504531;  // "1EPDPLAN" in memory
inline constexpr std::uint32_t kPlanVersion = 2;       // 2: a checksum that threads can share
inline constexpr std::size_t kPlanAlignmentBytes = 8;  // of the memory that holds a plan

struct PlanHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;  // sizeof(PlanHeader)
  std::uint64_t total_bytes;   // RoutingPlanBytes(spec)
  std::uint64_t group_id;
  std::uint64_t epoch;
  std::uint64_t plan_id;  // operation id of the prepare
  std::uint32_t rank;
  std::uint32_t num_ranks;
  std::uint32_t num_experts;
  std::uint32_t top_k;
  std::uint32_t alignment;   // 1 where the spec says 0
  std::uint32_t num_tokens;  // T of the prepare
  std::uint32_t max_tokens;
  std::uint32_t num_routes;  // N
  std::uint64_t reserved;    // 0
  std::uint64_t checksum;    // of the used part without this field (plan_checksum.h); last
};
static_assert(sizeof(PlanHeader) == 96 && offsetof(PlanHeader, checksum) == 88);

// Where this rank's rows for one expert begin.
struct PlanExpert {
  std::int32_t first_slot;   // in the owner's receive buffer
  std::int32_t first_route;  // in `order`
};
static_assert(sizeof(PlanExpert) == 8);

// One route; dst_rank is -1 and slot 0 where topk_idx named no expert.
struct PlanRoute {
  std::int32_t dst_rank;
  std::int32_t slot;  // pre-drop: at or after the receiver's capacity means dropped there
};
static_assert(sizeof(PlanRoute) == 8);

// Byte offsets of the sections for T tokens, and the size of the used part for N routes.
EPD_HOST_DEVICE inline std::size_t PlanCountsOffset(std::int64_t num_experts) {
  return sizeof(PlanHeader) + static_cast<std::size_t>(num_experts) * sizeof(PlanExpert);
}
EPD_HOST_DEVICE inline std::size_t PlanTableOffset(std::int64_t num_ranks,
                                                   std::int64_t num_experts) {
  // Rounded to keep the table's 8-byte entries aligned when R*E is odd.
  const std::int64_t counts_bytes = AlignUp(num_ranks * num_experts * 4, 8);
  return PlanCountsOffset(num_experts) + static_cast<std::size_t>(counts_bytes);
}
EPD_HOST_DEVICE inline std::size_t PlanOrderOffset(const RoutingSpec& spec, std::int64_t tokens) {
  return PlanTableOffset(spec.num_ranks, spec.num_experts) +
         static_cast<std::size_t>(tokens * spec.top_k) * sizeof(PlanRoute);
}
EPD_HOST_DEVICE inline std::size_t PlanUsedBytes(const RoutingSpec& spec, std::int64_t tokens,
                                                 std::int64_t routes) {
  return PlanOrderOffset(spec, tokens) + static_cast<std::size_t>(routes) * 4;
}

// Size of handle_mem, in bytes: a multiple of 64, equal on all ranks, a function of R, E, T_max
// and K only. The spec must pass CheckRoutingSpec.
EPD_HOST_DEVICE inline std::size_t RoutingPlanBytes(const RoutingSpec& spec) {
  return static_cast<std::size_t>(AlignUp(
      static_cast<std::int64_t>(PlanUsedBytes(spec, spec.max_tokens, spec.max_tokens * spec.top_k)),
      64));
}

// A rank's routes: topk_idx [T, K], negative = no route. Borrowed.
struct TopkIndices {
  const void* data = nullptr;  // may be null when num_tokens is 0
  IndexType type = IndexType::kInt32;
  std::int64_t num_tokens = 0;  // T
};

// Which prepare a plan comes from.
struct PlanIds {
  std::uint64_t group_id = 0;
  std::uint64_t epoch = 0;
  std::uint64_t plan_id = 0;
};

// All fields but the checksum, which is 0.
EPD_HOST_DEVICE inline PlanHeader MakePlanHeader(const RoutingSpec& spec, std::int32_t rank,
                                                 const PlanIds& ids, std::int64_t num_tokens,
                                                 std::int64_t num_routes) {
  PlanHeader header{};
  header.magic = kPlanMagic;
  header.version = kPlanVersion;
  header.header_bytes = sizeof(PlanHeader);
  header.total_bytes = RoutingPlanBytes(spec);
  header.group_id = ids.group_id;
  header.epoch = ids.epoch;
  header.plan_id = ids.plan_id;
  header.rank = static_cast<std::uint32_t>(rank);
  header.num_ranks = static_cast<std::uint32_t>(spec.num_ranks);
  header.num_experts = static_cast<std::uint32_t>(spec.num_experts);
  header.top_k = static_cast<std::uint32_t>(spec.top_k);
  header.alignment = static_cast<std::uint32_t>(EffectiveAlignment(spec));
  header.num_tokens = static_cast<std::uint32_t>(num_tokens);
  header.max_tokens = static_cast<std::uint32_t>(spec.max_tokens);
  header.num_routes = static_cast<std::uint32_t>(num_routes);
  return header;
}

// Fills counts[E] with the number of routes per expert: what a rank announces in prepare.
//   kInvalidArgument  T over T_max; an index >= E (names token, k, value, E); a bad spec.
// On error the counts are all 0.
KernelError CountRoutes(const RoutingSpec& spec, const TopkIndices& topk, std::int32_t* counts);

// Checks gathered counts [R, E]: each row's entries are >= 0 and sum to at most T_max * K, and
// every rank's slots fit in an int32. A peer's numbers are input, never trusted.
//   kInvalidArgument  kCountRange with rank and expert, kTooManySlots with the rank.
KernelError CheckCounts(const RoutingSpec& spec, const std::int32_t* counts);

struct BuildPlanArgs {
  RoutingSpec spec;
  std::int32_t rank = 0;
  PlanIds ids;
  TopkIndices topk;                      // of this rank
  const std::int32_t* counts = nullptr;  // [R, E]
  void* plan = nullptr;                  // [RoutingPlanBytes(spec)], aligned to 8 bytes
  std::size_t plan_bytes = 0;
  std::int32_t* token_counts = nullptr;  // [NumLocalExperts(spec, rank)] padded zone lengths
  std::int32_t* total_recv = nullptr;    // [1] their sum, before any drop
};

// Writes the whole of handle_mem, token_counts and total_recv. Same input, same bytes. `topk` is
// read twice and the plan serves as scratch, so no peer may be able to write either meanwhile: an
// executor in another process copies topk_idx out of staging first, builds in its own memory, and
// copies the plan back with StagePlan.
//   kInvalidArgument  bad spec, rank, counts, T or index; a buffer too small or misaligned; counts
//                     whose row of this rank is not what topk_idx has (kCountMismatch).
// On error the three outputs are zeros, as far as their sizes are known.
KernelError BuildRoutingPlan(const BuildPlanArgs& args);

// A validated plan. Borrows the memory and spec.expert_owner; plain data, copy freely. The
// kernels trust the header fields and counts of a view, so the memory must be writable by the
// holder only: copy a plan out of memory that a peer can write before viewing it. The table and
// the order are bounds-checked again where they are used.
struct RoutingPlanView {
  RoutingSpec spec;
  PlanIds ids;
  std::int32_t rank = 0;
  std::int64_t num_tokens = 0;           // T of the prepare
  std::int64_t num_routes = 0;           // N
  const PlanExpert* experts = nullptr;   // [E]
  const std::int32_t* counts = nullptr;  // [R, E]
  const PlanRoute* table = nullptr;      // [T, K]
  const std::int32_t* order = nullptr;   // [N]
  const void* plan = nullptr;            // start of the plan
  std::size_t used_bytes = 0;            // of the used part
};

struct ViewPlanArgs {
  const void* plan = nullptr;  // handle_mem, or a copy of its used part; aligned to 8 bytes
  std::size_t bytes = 0;       // readable there
  RoutingSpec spec;            // what the group and the call say
  std::int32_t rank = 0;
  PlanIds ids;  // plan_id 0 accepts any prepare of the group and epoch
};

// Validates everything that a view promises and fills `view`; `got` is the plan's value, `expected`
// the caller's.
//   kInvalidArgument  kPlanGroup, kPlanRank, kPlanId, kPlanNumRanks, kPlanNumExperts, kPlanTopK,
//                     kPlanAlignment, kPlanMaxTokens, kPlanBytes: a sound plan of something else.
//   kAborted          kPlanEpoch: a sound plan from before the group was re-formed; prepare again.
//   kDataLoss         kPlanMagic, kPlanVersion, kPlanHeaderBytes, kPlanTruncated, kPlanChecksum,
//                     kPlanNumTokens, kCountRange: not a plan, or a damaged one.
KernelError ViewRoutingPlan(const ViewPlanArgs& args, RoutingPlanView* view);

// Copies the used part of a plan into a stage, for an executor in another process, which copies
// it out again and calls ViewRoutingPlan. `stage` is aligned to 8 bytes. The copy is of the group and epoch in
// `view.ids`, whatever the plan itself was made for.
//   kInvalidArgument  kBufferTooSmall.
KernelError StagePlan(const RoutingPlanView& view, void* stage, std::size_t stage_bytes);

}  // namespace epd
