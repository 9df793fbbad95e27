#include "daemon/core/nccl_ep_limits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

absl::Status Beyond(const GroupSpec& spec, const std::string& field, const std::string& got,
                    const std::string& limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      "group=", text::Clean(spec.name, limits::kNameBytes), " spec field ", field, " is ", got,
      ", but with backend=", spec.backend, " ", spec.traits().library, "'s limit is ", limit,
      "; fix the call, or ask for backend=", spec.traits().served_by));
}

}  // namespace

absl::Status CheckNcclEpLimits(const GroupSpec& spec) {
  if (!spec.traits().by_library()) return absl::OkStatus();
  if (spec.executor == Executor::kClient) {
    return Beyond(spec, "executor", "client", "the worker, which alone can die of the library");
  }
  if (!spec.expert_owner.empty()) {
    return Beyond(spec, "expert_owner", "a table", "contiguous blocks of experts");
  }
  if (spec.num_experts % spec.num_ranks != 0) {
    return Beyond(spec, "num_experts", absl::StrCat(spec.num_experts),
                  absl::StrCat("a multiple of num_ranks=", spec.num_ranks));
  }
  if (spec.num_experts / spec.num_ranks > kNcclEpMaxLocalExperts) {
    return Beyond(spec, "num_experts", absl::StrCat(spec.num_experts),
                  absl::StrCat(kNcclEpMaxLocalExperts, " experts per rank"));
  }
  if (spec.num_experts % 4 != 0) {
    return Beyond(spec, "num_experts", absl::StrCat(spec.num_experts), "a multiple of 4");
  }
  if (spec.max_token_dtype != Dtype::kBfloat16) {
    return Beyond(spec, "max_token_dtype", std::string(Name(spec.max_token_dtype)),
                  "bfloat16, the one dtype that it sums");
  }
  const uint32_t row_bytes = spec.hidden * 2;
  if (row_bytes % kNcclEpRowMultiple != 0 || spec.hidden > kNcclEpMaxHidden) {
    return Beyond(spec, "hidden", absl::StrCat(spec.hidden),
                  absl::StrCat("rows of whole multiples of ", kNcclEpRowMultiple,
                               " bytes, of at most ", kNcclEpMaxHidden, " elements"));
  }
  if (spec.top_k == 0 || spec.top_k > kNcclEpMaxTopK || spec.top_k > spec.num_experts) {
    return Beyond(
        spec, "top_k", absl::StrCat(spec.top_k),
        absl::StrCat("1 to ", kNcclEpMaxTopK, " and no more than num_experts=", spec.num_experts));
  }
  return absl::OkStatus();
}

}  // namespace epd
