#include "kernels/cpu/stage_checks.h"

#include "kernels/cpu/hostile_read.h"
#include "kernels/kernel_fault.h"

namespace epd {
namespace {

// One comparison of a header field; a table of them keeps the checks readable.
struct Field {
  KernelFault fault;
  std::uint64_t got;
  std::uint64_t expected;
};

template <std::size_t N>
KernelError CheckFields(const Field (&fields)[N], std::int32_t rank) {
  for (const Field& field : fields) {
    if (field.got != field.expected) {
      return AtRank(Fault(Code::kDataLoss, field.fault, field.got, field.expected), rank);
    }
  }
  return {};
}

template <typename Got, typename Expected>
KernelError Lost(KernelFault fault, std::int32_t rank, Got got, Expected expected) {
  return AtRank(Fault(Code::kDataLoss, fault, got, expected), rank);
}

// Room for a header, and aligned as regions are.
KernelError CheckRegion(const StageRef& ref, std::size_t header_bytes, std::int32_t rank) {
  if (ref.base == nullptr) return AtRank(MissingArgument("sources[rank].base"), rank);
  const std::size_t remainder =
      reinterpret_cast<std::uintptr_t>(ref.base) % static_cast<std::size_t>(kStageRowsAlignment);
  if (remainder != 0) {
    return AtRank(Invalid(KernelFault::kMisaligned, remainder, kStageRowsAlignment), rank);
  }
  if (ref.bytes < header_bytes) {
    return Lost(KernelFault::kStageTruncated, rank, ref.bytes, header_bytes);
  }
  return {};
}

// Identity, and counts small enough that the layout arithmetic cannot overflow.
KernelError CheckScatterHeader(const PullScatterArgs& args, std::int32_t rank,
                               const ScatterStageHeader& header) {
  const RoutingPlanView& plan = *args.plan;
  const Field fields[] = {
      {KernelFault::kStageMagic, header.magic, kScatterStageMagic},
      {KernelFault::kStageVersion, header.version, kScatterStageVersion},
      {KernelFault::kStageRank, header.rank, static_cast<std::uint64_t>(rank)},
      {KernelFault::kStagePlanId, header.plan_id, plan.ids.plan_id},
      {KernelFault::kStageNumRanks, header.num_ranks,
       static_cast<std::uint64_t>(plan.spec.num_ranks)},
      {KernelFault::kStageRowBytes, header.row_bytes, StageRowBytes(args.slice, args.row_bytes)},
  };
  if (const KernelError error = CheckFields(fields, rank); !error.ok()) return error;
  // With nothing to carry, either side's pointer may be null without a meaning.
  const bool carries = header.num_routes > 0 && args.capacity > 0;
  const std::uint32_t wants_weights = args.recv_weights != nullptr ? 1 : 0;
  const bool as_wanted = header.has_weights == wants_weights || args.slice.skip_weights;
  if (header.has_weights > 1 || (carries && !as_wanted)) {
    return Lost(KernelFault::kStageWeights, rank, header.has_weights, wants_weights);
  }
  if (header.num_rows > static_cast<std::uint64_t>(plan.spec.max_tokens)) {
    return Lost(KernelFault::kStageNumRows, rank, header.num_rows, plan.spec.max_tokens);
  }
  const std::uint64_t max_routes =
      static_cast<std::uint64_t>(header.num_rows) * static_cast<std::uint64_t>(plan.spec.top_k);
  if (header.num_routes > max_routes) {
    return Lost(KernelFault::kStageNumRows, rank, header.num_routes, max_routes);
  }
  const ScatterStageShape shape = {header.num_rows, header.num_routes, plan.spec.num_ranks,
                                   header.row_bytes};
  const std::uint64_t total = ScatterStageBytes(shape);
  const Field offsets[] = {
      {KernelFault::kStageOffset, header.routes_offset, ScatterRoutesOffset(shape.num_ranks)},
      {KernelFault::kStageOffset, header.rows_offset, ScatterRowsOffset(shape)},
      {KernelFault::kStageOffset, header.total_bytes, total},
  };
  if (const KernelError error = CheckFields(offsets, rank); !error.ok()) return error;
  if (args.sources[rank].bytes < total) {
    return Lost(KernelFault::kStageTruncated, rank, args.sources[rank].bytes, total);
  }
  return {};
}

}  // namespace

KernelError CheckScatterStage(const PullScatterArgs& args, std::int32_t rank,
                              ScatterSource* source) {
  const StageRef& ref = args.sources[rank];
  if (const KernelError error = CheckRegion(ref, sizeof(ScatterStageHeader), rank); !error.ok()) {
    return error;
  }
  const auto header = CopyOnce<ScatterStageHeader>(ref.base);
  if (const KernelError error = CheckScatterHeader(args, rank, header); !error.ok()) return error;
  const auto* base = static_cast<const std::uint8_t*>(ref.base);
  const std::uint8_t* route_begin = base + sizeof(ScatterStageHeader) + args.plan->rank * 4;
  const std::uint32_t begin = ReadOnce(route_begin);
  const std::uint32_t end = ReadOnce(route_begin + 4);
  if (end > header.num_routes) {
    return Lost(KernelFault::kStageRouteBegin, rank, end, header.num_routes);
  }
  if (begin > end) return Lost(KernelFault::kStageRouteBegin, rank, begin, end);
  const std::int64_t expected =
      RowsBetween(args.plan->spec, args.plan->counts, rank, args.plan->rank);
  if (end - begin != static_cast<std::uint64_t>(expected)) {
    return Lost(KernelFault::kStageRouteCount, rank, end - begin, expected);
  }
  *source = {base + header.rows_offset + args.slice.offset, base + header.routes_offset,
             header.num_rows, begin};
  return {};
}

KernelError CheckGatherStage(const PullGatherArgs& args, std::int32_t rank, std::int64_t demand,
                             GatherSource* source) {
  const StageRef& ref = args.sources[rank];
  if (const KernelError error = CheckRegion(ref, sizeof(GatherStageHeader), rank); !error.ok()) {
    return error;
  }
  const auto header = CopyOnce<GatherStageHeader>(ref.base);
  const Field fields[] = {
      {KernelFault::kStageMagic, header.magic, kGatherStageMagic},
      {KernelFault::kStageVersion, header.version, kGatherStageVersion},
      {KernelFault::kStageRank, header.rank, static_cast<std::uint64_t>(rank)},
      {KernelFault::kStagePlanId, header.plan_id, args.plan->ids.plan_id},
      {KernelFault::kStageRowBytes, header.row_bytes, args.row_bytes},
  };
  if (const KernelError error = CheckFields(fields, rank); !error.ok()) return error;
  const bool carries = header.num_rows > 0 && args.num_tokens > 0;
  const std::uint32_t wants_weights = args.out_weights != nullptr ? 1 : 0;
  if (header.has_weights > 1 || (carries && header.has_weights != wants_weights)) {
    return Lost(KernelFault::kStageWeights, rank, header.has_weights, wants_weights);
  }
  const std::int64_t live = header.num_rows;
  if (live > demand || (live < demand && !args.drop_on_overflow)) {
    return Lost(KernelFault::kStageNumRows, rank, live, demand);
  }
  const GatherStageShape shape = {live, header.row_bytes, header.has_weights != 0};
  const std::uint64_t total = GatherStageBytes(shape);
  const std::uint64_t weights_offset = shape.has_weights ? sizeof(GatherStageHeader) : 0;
  const Field offsets[] = {
      {KernelFault::kStageOffset, header.weights_offset, weights_offset},
      {KernelFault::kStageOffset, header.rows_offset, GatherRowsOffset(shape)},
      {KernelFault::kStageOffset, header.total_bytes, total},
  };
  if (const KernelError error = CheckFields(offsets, rank); !error.ok()) return error;
  if (ref.bytes < total) return Lost(KernelFault::kStageTruncated, rank, ref.bytes, total);
  const auto* base = static_cast<const std::uint8_t*>(ref.base);
  source->rows = base + header.rows_offset;
  source->num_rows = live;
  source->weights =
      shape.has_weights ? reinterpret_cast<const float*>(base + header.weights_offset) : nullptr;
  return {};
}

}  // namespace epd
