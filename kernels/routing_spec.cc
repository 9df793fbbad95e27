#include "kernels/routing_spec.h"

#include <limits>

#include "kernels/kernel_fault.h"

namespace epd {

KernelError CheckRoutingSpec(const RoutingSpec& spec) {
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max() / kMaxTopK;
  if (spec.num_ranks < 1 || spec.num_ranks > kMaxRanks) {
    return Invalid(KernelFault::kNumRanks, spec.num_ranks, kMaxRanks);
  }
  if (spec.num_experts < 1 || spec.num_experts > kMaxExperts) {
    return Invalid(KernelFault::kNumExperts, spec.num_experts, kMaxExperts);
  }
  if (spec.top_k < 1 || spec.top_k > kMaxTopK) {
    return Invalid(KernelFault::kTopK, spec.top_k, kMaxTopK);
  }
  const std::int32_t a = spec.alignment;
  if (a < 0 || a > kMaxAlignment || (a & (a - 1)) != 0) {
    return Invalid(KernelFault::kAlignment, a, kMaxAlignment);
  }
  if (spec.max_tokens < 0 || spec.max_tokens > kMaxTokens) {
    return Invalid(KernelFault::kMaxTokens, spec.max_tokens, kMaxTokens);
  }
  if (spec.expert_owner == nullptr) return {};
  for (std::int32_t e = 0; e < spec.num_experts; ++e) {
    const std::int32_t owner = spec.expert_owner[e];
    if (owner < 0 || owner >= spec.num_ranks) {
      return AtIndex(Invalid(KernelFault::kExpertOwner, owner, spec.num_ranks), e);
    }
  }
  return {};
}

}  // namespace epd
