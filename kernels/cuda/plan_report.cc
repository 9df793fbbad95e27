#include "kernels/cuda/plan_report.h"

namespace epd::cuda {
namespace {

// As ViewRoutingPlan says it, the caller's mistake.
bool IsOfAnother(KernelFault fault) {
  return fault == KernelFault::kPlanBytes ||
         (fault >= KernelFault::kPlanGroup && fault <= KernelFault::kPlanMaxTokens &&
          fault != KernelFault::kPlanEpoch);
}

void AddNumbers(const PlanHeader& got, const PlanHeader& want, KernelError& error) {
  const auto set = [&error](std::uint64_t is, std::uint64_t should) {
    error.got = is;
    error.expected = should;
  };
  switch (error.fault) {
    case KernelFault::kPlanMagic:
      return set(got.magic, want.magic);
    case KernelFault::kPlanVersion:
      return set(got.version, want.version);
    case KernelFault::kPlanHeaderBytes:
      return set(got.header_bytes, want.header_bytes);
    case KernelFault::kPlanBytes:
      return set(got.total_bytes, want.total_bytes);
    case KernelFault::kPlanChecksum:
      return set(got.checksum, 0);
    case KernelFault::kPlanGroup:
      return set(got.group_id, want.group_id);
    case KernelFault::kPlanEpoch:
      return set(got.epoch, want.epoch);
    case KernelFault::kPlanId:
      return set(got.plan_id, want.plan_id);
    case KernelFault::kPlanRank:
      return set(got.rank, want.rank);
    case KernelFault::kPlanNumRanks:
      return set(got.num_ranks, want.num_ranks);
    case KernelFault::kPlanNumExperts:
      return set(got.num_experts, want.num_experts);
    case KernelFault::kPlanTopK:
      return set(got.top_k, want.top_k);
    case KernelFault::kPlanAlignment:
      return set(got.alignment, want.alignment);
    case KernelFault::kPlanMaxTokens:
      return set(got.max_tokens, want.max_tokens);
    case KernelFault::kNumTokens:
      return set(want.num_tokens, got.num_tokens);
    case KernelFault::kPlanNumTokens:
      return set(got.num_tokens, want.max_tokens);
    default:
      return;
  }
}

}  // namespace

KernelError ReadPlanReport(ReportWord word, const PlanHeader& got, const PlanHeader& want) {
  KernelError error = ReadReport(word);
  if (error.ok()) return error;
  if (IsOfAnother(error.fault)) error.code = Code::kInvalidArgument;
  AddNumbers(got, want, error);
  return error;
}

}  // namespace epd::cuda
