// Reading a plan back: nothing in it is believed before the checksum has been compared.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/kernel_fault.h"
#include "kernels/plan_checksum.h"
#include "kernels/plan_reader.h"
#include "kernels/routing_plan.h"

namespace epd {
namespace {

template <typename Got, typename Expected>
KernelError Lost(KernelFault fault, Got got, Expected expected) {
  return Fault(Code::kDataLoss, fault, got, expected);
}

// The spec that the header itself claims; good for sizes only.
RoutingSpec ClaimedSpec(const PlanHeader& header) {
  RoutingSpec spec;
  spec.num_ranks = static_cast<std::int32_t>(header.num_ranks);
  spec.num_experts = static_cast<std::int32_t>(header.num_experts);
  spec.top_k = static_cast<std::int32_t>(header.top_k);
  spec.max_tokens = header.max_tokens;
  return spec;
}

// Can this be a plan? Bounds each factor before it is multiplied. `used_bytes`: of it, all there.
KernelError CheckHeader(const ViewPlanArgs& args, const PlanHeader& header,
                        std::size_t* used_bytes) {
  if (header.magic != kPlanMagic) return Lost(KernelFault::kPlanMagic, header.magic, kPlanMagic);
  if (header.version != kPlanVersion) {
    return Lost(KernelFault::kPlanVersion, header.version, kPlanVersion);
  }
  if (header.header_bytes != sizeof(PlanHeader)) {
    return Lost(KernelFault::kPlanHeaderBytes, header.header_bytes, sizeof(PlanHeader));
  }
  if (header.num_ranks > static_cast<std::uint32_t>(kMaxRanks)) {
    return Lost(KernelFault::kPlanNumRanks, header.num_ranks, args.spec.num_ranks);
  }
  if (header.num_experts > static_cast<std::uint32_t>(kMaxExperts)) {
    return Lost(KernelFault::kPlanNumExperts, header.num_experts, args.spec.num_experts);
  }
  if (header.top_k > static_cast<std::uint32_t>(kMaxTopK)) {
    return Lost(KernelFault::kPlanTopK, header.top_k, args.spec.top_k);
  }
  if (header.num_tokens > header.max_tokens) {
    return Lost(KernelFault::kPlanNumTokens, header.num_tokens, header.max_tokens);
  }
  const std::int64_t max_routes = static_cast<std::int64_t>(header.num_tokens) * header.top_k;
  if (header.num_routes > max_routes) {
    return Lost(KernelFault::kPlanNumTokens, header.num_routes, max_routes);
  }
  const std::size_t used = PlanUsedBytes(ClaimedSpec(header), header.num_tokens, header.num_routes);
  if (used > args.bytes) return Lost(KernelFault::kPlanTruncated, args.bytes, used);
  *used_bytes = used;
  return {};
}

// A sound plan: is it the caller's?
KernelError CheckExpected(const ViewPlanArgs& args, const PlanHeader& header) {
  struct Field {
    KernelFault fault;
    std::uint64_t got;
    std::uint64_t expected;
  };
  const RoutingSpec& spec = args.spec;
  const Field fields[] = {
      {KernelFault::kPlanGroup, header.group_id, args.ids.group_id},
      {KernelFault::kPlanEpoch, header.epoch, args.ids.epoch},
      {KernelFault::kPlanNumRanks, header.num_ranks, static_cast<std::uint64_t>(spec.num_ranks)},
      {KernelFault::kPlanNumExperts, header.num_experts,
       static_cast<std::uint64_t>(spec.num_experts)},
      {KernelFault::kPlanTopK, header.top_k, static_cast<std::uint64_t>(spec.top_k)},
      {KernelFault::kPlanAlignment, header.alignment,
       static_cast<std::uint64_t>(EffectiveAlignment(spec))},
      {KernelFault::kPlanMaxTokens, header.max_tokens, static_cast<std::uint64_t>(spec.max_tokens)},
      {KernelFault::kPlanRank, header.rank, static_cast<std::uint64_t>(args.rank)},
      {KernelFault::kPlanBytes, header.total_bytes, RoutingPlanBytes(spec)},
      {KernelFault::kPlanId, header.plan_id,
       args.ids.plan_id == 0 ? header.plan_id : args.ids.plan_id},
  };
  for (const Field& field : fields) {
    if (field.got == field.expected) continue;
    const bool stale = field.fault == KernelFault::kPlanEpoch;
    return Fault(stale ? Code::kAborted : Code::kInvalidArgument, field.fault, field.got,
                 field.expected);
  }
  return {};
}

// A checksum says that nothing changed, not that the numbers make sense.
KernelError CheckPlanCounts(const RoutingPlanView& view, const CountReader& counts) {
  KernelError error = counts.Check();
  if (error.ok()) {
    std::int64_t routes = 0;
    for (std::int32_t e = 0; e < view.spec.num_experts; ++e) {
      routes += RowsOf(view.spec, view.counts, view.rank, e);
    }
    if (routes != view.num_routes) {
      error = Lost(KernelFault::kPlanNumTokens, view.num_routes, routes);
    }
  }
  if (!error.ok()) error.code = Code::kDataLoss;
  return error;
}

RoutingPlanView MakeView(const ViewPlanArgs& args, const PlanHeader& header) {
  const auto* bytes = static_cast<const std::uint8_t*>(args.plan);
  RoutingPlanView view;
  view.spec = args.spec;
  view.ids = {header.group_id, header.epoch, header.plan_id};
  view.rank = args.rank;
  view.num_tokens = header.num_tokens;
  view.num_routes = header.num_routes;
  view.experts = reinterpret_cast<const PlanExpert*>(bytes + sizeof(PlanHeader));
  view.counts =
      reinterpret_cast<const std::int32_t*>(bytes + PlanCountsOffset(args.spec.num_experts));
  view.table = reinterpret_cast<const PlanRoute*>(
      bytes + PlanTableOffset(args.spec.num_ranks, args.spec.num_experts));
  view.order =
      reinterpret_cast<const std::int32_t*>(bytes + PlanOrderOffset(args.spec, header.num_tokens));
  view.plan = args.plan;
  view.used_bytes = PlanUsedBytes(args.spec, header.num_tokens, header.num_routes);
  return view;
}

PlanHeader HeaderOf(const ViewPlanArgs& args) {
  PlanHeader header;
  std::memcpy(&header, args.plan, sizeof(header));
  return header;
}

KernelError CheckArgs(const ViewPlanArgs& args) {
  if (const KernelError error = CheckRoutingSpec(args.spec); !error.ok()) return error;
  if (args.plan == nullptr) return MissingArgument("handle_mem");
  if (args.rank < 0 || args.rank >= args.spec.num_ranks) {
    return Invalid(KernelFault::kRank, args.rank, args.spec.num_ranks);
  }
  const std::size_t remainder = reinterpret_cast<std::uintptr_t>(args.plan) % kPlanAlignmentBytes;
  if (remainder != 0) return Invalid(KernelFault::kMisaligned, remainder, kPlanAlignmentBytes);
  if (args.bytes < sizeof(PlanHeader)) {
    return Lost(KernelFault::kPlanTruncated, args.bytes, sizeof(PlanHeader));
  }
  return {};
}

}  // namespace

PlanReader::PlanReader(const ViewPlanArgs& args) : args_(args) {
  error_ = CheckArgs(args);
  if (error_.ok()) error_ = CheckHeader(args, HeaderOf(args), &used_bytes_);
}

bool PlanReader::Some(std::size_t bytes) {
  if (!error_.ok()) return false;
  if (counts_.has_value()) return counts_->Some(bytes);
  const std::size_t left = used_bytes_ - summed_bytes_;
  const std::size_t now = std::min(left, std::max<std::size_t>(bytes / 8, 1) * 8);
  const auto first = static_cast<std::int64_t>(summed_bytes_ / 8);
  summed_bytes_ += now;
  sum_ += SumPlanWords(args_.plan, summed_bytes_, first, 1);
  if (summed_bytes_ < used_bytes_) return true;
  error_ = CheckSum();
  if (!error_.ok()) return false;
  counts_.emplace(args_.spec, MakeView(args_, HeaderOf(args_)).counts);
  return true;
}

KernelError PlanReader::CheckSum() const {
  const PlanHeader header = HeaderOf(args_);
  const std::uint64_t checksum = SealPlanSum(sum_, used_bytes_);
  if (checksum != header.checksum) {
    return Lost(KernelFault::kPlanChecksum, checksum, header.checksum);
  }
  return CheckExpected(args_, header);
}

KernelError PlanReader::View(RoutingPlanView* view) const {
  if (!error_.ok()) return error_;
  const RoutingPlanView checked = MakeView(args_, HeaderOf(args_));
  const KernelError error = CheckPlanCounts(checked, *counts_);
  if (error.ok()) *view = checked;
  return error;
}

KernelError ViewRoutingPlan(const ViewPlanArgs& args, RoutingPlanView* view) {
  PlanReader reader(args);
  while (reader.Some(std::numeric_limits<std::size_t>::max())) {
  }
  return reader.View(view);
}

KernelError StagePlan(const RoutingPlanView& view, void* stage, std::size_t stage_bytes) {
  if (stage == nullptr) return MissingArgument("stage");
  if (stage_bytes < view.used_bytes) {
    return Invalid(KernelFault::kBufferTooSmall, stage_bytes, view.used_bytes);
  }
  std::memcpy(stage, view.plan, view.used_bytes);
  PlanHeader& header = *static_cast<PlanHeader*>(stage);
  if (header.group_id == view.ids.group_id && header.epoch == view.ids.epoch) return {};
  header.group_id = view.ids.group_id;
  header.epoch = view.ids.epoch;
  header.checksum = PlanChecksum(stage, view.used_bytes);
  return {};
}

}  // namespace epd
