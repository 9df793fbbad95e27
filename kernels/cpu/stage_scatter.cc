#include <algorithm>
#include <cstring>

#include "kernels/cpu/argument_checks.h"
#include "kernels/scatter_rows.h"

namespace epd {
namespace {

ScatterStageShape ShapeOf(const StageScatterArgs& args) {
  return {args.plan->num_tokens, args.plan->num_routes, args.plan->spec.num_ranks,
          StageRowBytes(args.slice, args.row_bytes)};
}

KernelError CheckArgs(const StageScatterArgs& args) {
  if (const KernelError error = CheckPlan(args.plan); !error.ok()) return error;
  if (const KernelError error = CheckRowBytes(args.row_bytes); !error.ok()) return error;
  if (const KernelError error = CheckSlice(args.slice, args.row_bytes); !error.ok()) return error;
  if (args.num_tokens != args.plan->num_tokens) {
    return Invalid(KernelFault::kNumTokens, args.num_tokens, args.plan->num_tokens);
  }
  if (args.num_tokens > 0 && args.rows == nullptr) return MissingArgument("rows");
  return CheckStageMemory(args.stage, args.stage_bytes, ScatterStageBytes(ShapeOf(args)));
}

// Writes route_begin[R + 1].
void WriteRouteBegins(const RoutingPlanView& plan, std::uint32_t* route_begin) {
  std::int64_t begin = 0;
  for (std::int32_t dst = 0; dst < plan.spec.num_ranks; ++dst) {
    route_begin[dst] = static_cast<std::uint32_t>(begin);
    begin += RowsBetween(plan.spec, plan.counts, plan.rank, dst);
  }
  route_begin[plan.spec.num_ranks] = static_cast<std::uint32_t>(begin);
}

// Writes routes[N] in the plan's order. Bounds-checks the order: a checksum is no proof against a
// plan that was made up.
KernelError WriteRoutes(const StageScatterArgs& args, StageRoute* routes) {
  const RoutingPlanView& plan = *args.plan;
  const std::int64_t num_entries = plan.num_tokens * plan.spec.top_k;
  const auto top_k = static_cast<std::uint32_t>(plan.spec.top_k);
  for (std::int64_t i = 0; i < plan.num_routes; ++i) {
    const std::int32_t flat = plan.order[i];
    if (flat < 0 || flat >= num_entries) {
      return AtIndex(Invalid(KernelFault::kPlanRoute, flat, num_entries), i);
    }
    routes[i] = {static_cast<std::uint32_t>(flat) / top_k,
                 static_cast<std::uint32_t>(plan.table[flat].slot),
                 args.weights != nullptr ? args.weights[flat] : 0.0f};
  }
  return {};
}

// Whether another rank gets a row of `token`.
bool GoesElsewhere(const RoutingPlanView& plan, std::int64_t token) {
  const PlanRoute* routes = plan.table + token * plan.spec.top_k;
  return std::any_of(routes, routes + plan.spec.top_k, [&plan](const PlanRoute& route) {
    return route.dst_rank >= 0 && route.dst_rank != plan.rank;
  });
}

// One copy where rows follow each other in the stage, too: libc's large copies beat a loop over rows.
void CopyRun(const StageScatterArgs& args, std::int64_t begin, std::int64_t count,
             std::uint8_t* rows) {
  const std::uint64_t stride = StageRowBytes(args.slice, args.row_bytes);
  const std::uint8_t* from = static_cast<const std::uint8_t*>(args.rows) +
                             static_cast<std::uint64_t>(begin) * args.row_bytes;
  std::uint8_t* to = rows + static_cast<std::uint64_t>(begin) * stride + args.slice.offset;
  if (stride == args.row_bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * args.row_bytes);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i, from += args.row_bytes, to += stride) {
    std::memcpy(to, from, args.row_bytes);
  }
}

// In runs as long as possible.
void WriteRows(const StageScatterArgs& args, std::uint8_t* rows) {
  std::int64_t begin = 0;
  while (begin < args.num_tokens) {
    std::int64_t end = args.skip_own_rows ? begin : args.num_tokens;
    while (end < args.num_tokens && GoesElsewhere(*args.plan, end)) ++end;
    if (end > begin) CopyRun(args, begin, end - begin, rows);
    begin = end + 1;
  }
}

}  // namespace

KernelError StageScatter(const StageScatterArgs& args) {
  if (const KernelError error = CheckArgs(args); !error.ok()) return error;
  const RoutingPlanView& plan = *args.plan;
  const ScatterStageShape shape = ShapeOf(args);
  auto* stage = static_cast<std::uint8_t*>(args.stage);
  auto* routes = reinterpret_cast<StageRoute*>(stage + ScatterRoutesOffset(shape.num_ranks));
  WriteRouteBegins(plan, reinterpret_cast<std::uint32_t*>(stage + sizeof(ScatterStageHeader)));
  if (const KernelError error = WriteRoutes(args, routes); !error.ok()) return error;
  WriteRows(args, stage + ScatterRowsOffset(shape));

  ScatterStageHeader header{};
  header.magic = kScatterStageMagic;
  header.version = kScatterStageVersion;
  header.rank = static_cast<std::uint32_t>(plan.rank);
  header.plan_id = plan.ids.plan_id;
  header.num_ranks = static_cast<std::uint32_t>(shape.num_ranks);
  header.num_rows = static_cast<std::uint32_t>(shape.num_tokens);
  header.num_routes = static_cast<std::uint32_t>(shape.num_routes);
  header.has_weights = args.weights != nullptr ? 1 : 0;
  header.row_bytes = shape.row_bytes;
  header.routes_offset = ScatterRoutesOffset(shape.num_ranks);
  header.rows_offset = ScatterRowsOffset(shape);
  header.total_bytes = ScatterStageBytes(shape);
  std::memcpy(stage, &header, sizeof(header));
  return {};
}

KernelError StageScatterSlice(const StageScatterArgs& args) {
  if (const KernelError error = CheckArgs(args); !error.ok()) return error;
  WriteRows(args, static_cast<std::uint8_t*>(args.stage) + ScatterRowsOffset(ShapeOf(args)));
  return {};
}

}  // namespace epd
