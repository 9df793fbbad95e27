#include "daemon/worker/shell/library_group.h"

#include "absl/strings/str_cat.h"

namespace epd {

LibraryGroup LibraryGroupOf(const GroupSpec& spec) {
  return {
      .num_experts = spec.num_experts,
      .max_tokens = spec.max_tokens_per_rank,
      .recv_capacity = spec.recv_capacity_per_rank,
      .top_k = spec.top_k,
      .row_bytes = uint64_t{spec.hidden} * static_cast<uint64_t>(SizeBytes(spec.max_token_dtype)),
      .drop_on_overflow = spec.drop_on_overflow};
}

absl::Status SeveralRanksOnOneGpu(const TenantStart& start) {
  return absl::FailedPreconditionError(
      absl::StrCat("group=", Title(start.spec), ": a worker of the group has several of its ",
                   start.spec.num_ranks,
                   " ranks, but with backend=nccl_ep NCCL EP's limit is one rank per GPU, and two "
                   "GPUs at least; "
                   "place one rank on each GPU, or ask for backend=cuda"));
}

}  // namespace epd
