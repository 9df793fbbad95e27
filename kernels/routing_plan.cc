#include "kernels/routing_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/count_reader.h"
#include "kernels/kernel_fault.h"
#include "kernels/plan_checksum.h"

namespace epd {
namespace {

std::int64_t ReadIndex(const TopkIndices& topk, std::int64_t i) {
  return topk.type == IndexType::kInt32 ? static_cast<const std::int32_t*>(topk.data)[i]
                                        : static_cast<const std::int64_t*>(topk.data)[i];
}

KernelError CheckTopk(const RoutingSpec& spec, const TopkIndices& topk) {
  if (topk.type != IndexType::kInt32 && topk.type != IndexType::kInt64) {
    return Invalid(KernelFault::kIndexType, static_cast<std::int32_t>(topk.type),
                   static_cast<std::int32_t>(IndexType::kInt64));
  }
  if (topk.num_tokens < 0 || topk.num_tokens > spec.max_tokens) {
    return Invalid(KernelFault::kNumTokens, topk.num_tokens, spec.max_tokens);
  }
  if (topk.num_tokens > 0 && topk.data == nullptr) return MissingArgument("topk_idx");
  return {};
}

// Calls count(expert) for every route, in (token, k) order, up to the first bad index.
template <typename Count>
KernelError ForEachRoute(const RoutingSpec& spec, const TopkIndices& topk, Count count) {
  const std::int64_t num_entries = topk.num_tokens * spec.top_k;
  for (std::int64_t i = 0; i < num_entries; ++i) {
    const std::int64_t expert = ReadIndex(topk, i);
    if (expert < 0) continue;
    if (expert >= spec.num_experts) {
      return AtRoute(Invalid(KernelFault::kExpertIndex, expert, spec.num_experts), i / spec.top_k,
                     i % spec.top_k);
    }
    count(expert);
  }
  return {};
}

KernelError CheckCountRow(const RoutingSpec& spec, const std::int32_t* counts, std::int32_t rank) {
  const std::int64_t max_routes = spec.max_tokens * spec.top_k;
  std::int64_t sum = 0;
  for (std::int32_t e = 0; e < spec.num_experts; ++e) {
    const std::int64_t rows = RowsOf(spec, counts, rank, e);
    if (rows < 0 || (sum += rows) > max_routes) {
      return AtIndex(AtRank(Invalid(KernelFault::kCountRange, rows, max_routes), rank), e);
    }
  }
  return {};
}

KernelError CheckSlots(const RoutingSpec& spec, const ExpertSums& sums) {
  constexpr std::int64_t kMaxSlots = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int64_t> slots(static_cast<std::size_t>(spec.num_ranks));
  sums.SlotsOfRanks(spec, slots.data());
  for (std::int32_t r = 0; r < spec.num_ranks; ++r) {
    const std::int64_t of_rank = slots[static_cast<std::size_t>(r)];
    if (of_rank > kMaxSlots) {
      return AtRank(Invalid(KernelFault::kTooManySlots, of_rank, kMaxSlots), r);
    }
  }
  return {};
}

// CheckCounts, with what it adds up. `before`: the rank whose predecessors are wanted; -1: none are.
KernelError SumCounts(const RoutingSpec& spec, const std::int32_t* counts, std::int32_t before,
                      ExpertSums& sums) {
  for (std::int32_t r = 0; r < spec.num_ranks; ++r) {
    if (r == before) sums.before = sums.of_all;
    const std::int32_t* row = counts + static_cast<std::int64_t>(r) * spec.num_experts;
    if (!sums.AddRow(row, spec.max_tokens * spec.top_k)) return CheckCountRow(spec, counts, r);
  }
  return CheckSlots(spec, sums);
}

KernelError CheckBuildArgs(const BuildPlanArgs& args) {
  if (const KernelError error = CheckRoutingSpec(args.spec); !error.ok()) return error;
  if (args.rank < 0 || args.rank >= args.spec.num_ranks) {
    return Invalid(KernelFault::kRank, args.rank, args.spec.num_ranks);
  }
  if (args.plan == nullptr) return MissingArgument("plan");
  if (args.counts == nullptr) return MissingArgument("counts");
  if (args.token_counts == nullptr && NumLocalExperts(args.spec, args.rank) > 0) {
    return MissingArgument("token_counts");
  }
  if (args.total_recv == nullptr) return MissingArgument("total_recv");
  const std::size_t remainder = reinterpret_cast<std::uintptr_t>(args.plan) % kPlanAlignmentBytes;
  if (remainder != 0) return Invalid(KernelFault::kMisaligned, remainder, kPlanAlignmentBytes);
  const std::size_t need = RoutingPlanBytes(args.spec);
  if (args.plan_bytes < need) return Invalid(KernelFault::kBufferTooSmall, args.plan_bytes, need);
  return CheckTopk(args.spec, args.topk);
}

// Sections of a plan that is being written.
struct PlanMemory {
  PlanHeader* header;
  PlanExpert* experts;
  std::int32_t* counts;
  PlanRoute* table;
  std::int32_t* order;
};

PlanMemory LayOut(const BuildPlanArgs& args) {
  auto* bytes = static_cast<std::uint8_t*>(args.plan);
  const RoutingSpec& spec = args.spec;
  return {reinterpret_cast<PlanHeader*>(bytes),
          reinterpret_cast<PlanExpert*>(bytes + sizeof(PlanHeader)),
          reinterpret_cast<std::int32_t*>(bytes + PlanCountsOffset(spec.num_experts)),
          reinterpret_cast<PlanRoute*>(bytes + PlanTableOffset(spec.num_ranks, spec.num_experts)),
          reinterpret_cast<std::int32_t*>(bytes + PlanOrderOffset(spec, args.topk.num_tokens))};
}

// Compares the announced row of this rank with its topk_idx, using first_slot as the counter.
KernelError CheckOwnCounts(const BuildPlanArgs& args, const PlanMemory& plan) {
  const KernelError error = ForEachRoute(
      args.spec, args.topk, [&](std::int64_t expert) { ++plan.experts[expert].first_slot; });
  if (!error.ok()) return error;
  for (std::int32_t e = 0; e < args.spec.num_experts; ++e) {
    const std::int64_t announced = RowsOf(args.spec, args.counts, args.rank, e);
    if (announced != plan.experts[e].first_slot) {
      return AtIndex(
          AtRank(Invalid(KernelFault::kCountMismatch, announced, plan.experts[e].first_slot),
                 args.rank),
          e);
    }
  }
  return {};
}

// Walks destinations and their experts in order: where this rank's rows for each begin.
void PlaceExperts(const BuildPlanArgs& args, const ExpertSums& sums, const PlanMemory& plan) {
  const RoutingSpec& spec = args.spec;
  std::int64_t route = 0;
  for (std::int32_t dst = 0; dst < spec.num_ranks; ++dst) {
    const ExpertRange range = OwnedExpertRange(spec, dst);
    std::int64_t zone = 0;
    for (std::int32_t e = range.begin; e < range.end; ++e) {
      if (ExpertOwner(spec, e) != dst) continue;
      const std::int64_t slot = zone + sums.before[static_cast<std::size_t>(e)];
      plan.experts[e] = {static_cast<std::int32_t>(slot), static_cast<std::int32_t>(route)};
      route += RowsOf(spec, args.counts, args.rank, e);
      zone += sums.zone_slots(spec, e);
    }
  }
}

// Fills table and order; `experts` serve as cursors and are put back.
void PlaceRoutes(const BuildPlanArgs& args, const PlanMemory& plan) {
  const RoutingSpec& spec = args.spec;
  const std::int64_t num_entries = args.topk.num_tokens * spec.top_k;
  for (std::int64_t i = 0; i < num_entries; ++i) {
    const std::int64_t expert = ReadIndex(args.topk, i);
    if (expert < 0) {
      plan.table[i] = {-1, 0};
      continue;
    }
    PlanExpert& next = plan.experts[expert];
    plan.table[i] = {ExpertOwner(spec, static_cast<std::int32_t>(expert)), next.first_slot++};
    plan.order[next.first_route++] = static_cast<std::int32_t>(i);
  }
  for (std::int32_t e = 0; e < spec.num_experts; ++e) {
    const auto rows = static_cast<std::int32_t>(RowsOf(spec, args.counts, args.rank, e));
    plan.experts[e].first_slot -= rows;
    plan.experts[e].first_route -= rows;
  }
}

std::int64_t WriteTokenCounts(const BuildPlanArgs& args, const ExpertSums& sums) {
  const ExpertRange range = OwnedExpertRange(args.spec, args.rank);
  std::int64_t total = 0;
  std::int32_t local = 0;
  for (std::int32_t e = range.begin; e < range.end; ++e) {
    if (ExpertOwner(args.spec, e) != args.rank) continue;
    const std::int64_t slots = sums.zone_slots(args.spec, e);
    args.token_counts[local++] = static_cast<std::int32_t>(slots);
    total += slots;
  }
  return total;
}

KernelError Build(const BuildPlanArgs& args, const ExpertSums& sums) {
  const RoutingSpec& spec = args.spec;
  const PlanMemory plan = LayOut(args);
  if (const KernelError error = CheckOwnCounts(args, plan); !error.ok()) return error;
  PlaceExperts(args, sums, plan);
  std::memcpy(plan.counts, args.counts,
              static_cast<std::size_t>(spec.num_ranks) * spec.num_experts * 4);
  PlaceRoutes(args, plan);
  std::int64_t num_routes = 0;
  for (std::int32_t e = 0; e < spec.num_experts; ++e) {
    num_routes += RowsOf(spec, args.counts, args.rank, e);
  }
  *args.total_recv = static_cast<std::int32_t>(WriteTokenCounts(args, sums));
  *plan.header = MakePlanHeader(spec, args.rank, args.ids, args.topk.num_tokens, num_routes);
  plan.header->checksum =
      PlanChecksum(args.plan, PlanUsedBytes(spec, args.topk.num_tokens, num_routes));
  return {};
}

void ZeroPlanOutputs(const BuildPlanArgs& args) {
  if (args.total_recv != nullptr) *args.total_recv = 0;
  if (args.plan != nullptr) std::memset(args.plan, 0, args.plan_bytes);
  if (args.token_counts == nullptr || !CheckRoutingSpec(args.spec).ok()) return;
  if (args.rank < 0 || args.rank >= args.spec.num_ranks) return;
  std::memset(args.token_counts, 0,
              static_cast<std::size_t>(NumLocalExperts(args.spec, args.rank)) * 4);
}

}  // namespace

KernelError CountRoutes(const RoutingSpec& spec, const TopkIndices& topk, std::int32_t* counts) {
  if (const KernelError error = CheckRoutingSpec(spec); !error.ok()) return error;
  if (counts == nullptr) return MissingArgument("counts");
  const std::size_t counts_bytes = static_cast<std::size_t>(spec.num_experts) * 4;
  std::memset(counts, 0, counts_bytes);
  KernelError error = CheckTopk(spec, topk);
  if (error.ok()) {
    error = ForEachRoute(spec, topk, [counts](std::int64_t expert) { ++counts[expert]; });
  }
  if (!error.ok()) std::memset(counts, 0, counts_bytes);
  return error;
}

KernelError CountReader::Check() const {
  return sound_ ? CheckSlots(spec_, sums_) : CheckCountRow(spec_, counts_, next_rank_ - 1);
}

KernelError CheckCounts(const RoutingSpec& spec, const std::int32_t* counts) {
  CountReader reader(spec, counts);
  reader.Some(std::numeric_limits<std::uint64_t>::max());
  return reader.Check();
}

KernelError BuildRoutingPlan(const BuildPlanArgs& args) {
  KernelError error = CheckBuildArgs(args);
  ExpertSums sums(error.ok() ? args.spec : RoutingSpec{});
  if (error.ok()) error = SumCounts(args.spec, args.counts, args.rank, sums);
  if (error.ok()) {
    // Also the unused tail: handle_mem is an output, so its bytes depend on the input alone.
    std::memset(args.plan, 0, args.plan_bytes);
    error = Build(args, sums);
  }
  if (!error.ok()) ZeroPlanOutputs(args);
  return error;
}

}  // namespace epd
