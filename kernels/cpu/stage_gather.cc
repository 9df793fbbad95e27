#include <cstring>

#include "kernels/cpu/argument_checks.h"
#include "kernels/gather_reduce_rows.h"

namespace epd {
namespace {

GatherStageShape ShapeOf(const StageGatherArgs& args) {
  const RoutingPlanView& plan = *args.plan;
  const std::int64_t demand = TotalRecv(plan.spec, plan.counts, plan.rank);
  return {LiveSlots(demand, args.capacity), args.row_bytes, args.weights != nullptr};
}

KernelError CheckArgs(const StageGatherArgs& args) {
  if (const KernelError error = CheckPlan(args.plan); !error.ok()) return error;
  if (const KernelError error = CheckRowBytes(args.row_bytes); !error.ok()) return error;
  if (const KernelError error = CheckCapacity(args.capacity); !error.ok()) return error;
  const GatherStageShape shape = ShapeOf(args);
  if (shape.num_rows > 0 && args.rows == nullptr) return MissingArgument("rows");
  return CheckStageMemory(args.stage, args.stage_bytes, GatherStageBytes(shape));
}

// Copies slots [begin, end) that are live into the stage.
struct SlotCopy {
  const StageGatherArgs& args;
  GatherStageShape shape;
  std::uint8_t* stage;

  void Run(std::int64_t begin, std::int64_t end) const {
    if (end > shape.num_rows) end = shape.num_rows;
    if (begin >= end) return;
    const std::size_t offset = static_cast<std::size_t>(begin) * args.row_bytes;
    const auto count = static_cast<std::size_t>(end - begin);
    std::memcpy(stage + GatherRowsOffset(shape) + offset,
                static_cast<const std::uint8_t*>(args.rows) + offset, count * args.row_bytes);
    if (!shape.has_weights) return;
    std::memcpy(stage + sizeof(GatherStageHeader) + static_cast<std::size_t>(begin) * 4,
                args.weights + begin, count * 4);
  }
};

// Every zone's rows in one copy, or in two around this rank's own rows.
void CopyZones(const StageGatherArgs& args, const SlotCopy& copy) {
  const RoutingPlanView& plan = *args.plan;
  const ExpertRange range = OwnedExpertRange(plan.spec, plan.rank);
  std::int64_t zone = 0;
  for (std::int32_t e = range.begin; e < range.end; ++e) {
    if (ExpertOwner(plan.spec, e) != plan.rank) continue;
    const std::int64_t rows = ExpertRows(plan.spec, plan.counts, e, plan.spec.num_ranks);
    if (args.skip_own_rows) {
      const std::int64_t own = zone + ExpertRows(plan.spec, plan.counts, e, plan.rank);
      copy.Run(zone, own);
      copy.Run(own + RowsOf(plan.spec, plan.counts, plan.rank, e), zone + rows);
    } else {
      copy.Run(zone, zone + rows);
    }
    zone += AlignUp(rows, EffectiveAlignment(plan.spec));
  }
}

}  // namespace

KernelError StageGather(const StageGatherArgs& args) {
  if (const KernelError error = CheckArgs(args); !error.ok()) return error;
  const GatherStageShape shape = ShapeOf(args);
  auto* stage = static_cast<std::uint8_t*>(args.stage);
  CopyZones(args, {args, shape, stage});

  GatherStageHeader header{};
  header.magic = kGatherStageMagic;
  header.version = kGatherStageVersion;
  header.rank = static_cast<std::uint32_t>(args.plan->rank);
  header.plan_id = args.plan->ids.plan_id;
  header.num_rows = static_cast<std::uint32_t>(shape.num_rows);
  header.has_weights = shape.has_weights ? 1 : 0;
  header.row_bytes = args.row_bytes;
  header.weights_offset = shape.has_weights ? sizeof(GatherStageHeader) : 0;
  header.rows_offset = GatherRowsOffset(shape);
  header.total_bytes = GatherStageBytes(shape);
  std::memcpy(stage, &header, sizeof(header));
  return {};
}

}  // namespace epd
