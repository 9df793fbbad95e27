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
  const struct {
    KernelFault fault;
    std::uint64_t got;
    std::uint64_t expected;
  } fields[] = {{KernelFault::kPlanMagic, got.magic, want.magic},
                {KernelFault::kPlanVersion, got.version, want.version},
                {KernelFault::kPlanHeaderBytes, got.header_bytes, want.header_bytes},
                {KernelFault::kPlanBytes, got.total_bytes, want.total_bytes},
                {KernelFault::kPlanChecksum, got.checksum, 0},
                {KernelFault::kPlanGroup, got.group_id, want.group_id},
                {KernelFault::kPlanEpoch, got.epoch, want.epoch},
                {KernelFault::kPlanId, got.plan_id, want.plan_id},
                {KernelFault::kPlanRank, got.rank, want.rank},
                {KernelFault::kPlanNumRanks, got.num_ranks, want.num_ranks},
                {KernelFault::kPlanNumExperts, got.num_experts, want.num_experts},
                {KernelFault::kPlanTopK, got.top_k, want.top_k},
                {KernelFault::kPlanAlignment, got.alignment, want.alignment},
                {KernelFault::kPlanMaxTokens, got.max_tokens, want.max_tokens},
                {KernelFault::kNumTokens, want.num_tokens, got.num_tokens},
                {KernelFault::kPlanNumTokens, got.num_tokens, want.max_tokens}};
  for (const auto& field : fields) {
    if (field.fault != error.fault) continue;
    error.got = field.got;
    error.expected = field.expected;
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
