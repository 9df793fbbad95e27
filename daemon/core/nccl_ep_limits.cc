#include "daemon/core/nccl_ep_limits.h"

#include <cstddef>
#include <numeric>
#include <string>

#include "absl/algorithm/container.h"
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
  if (spec.num_ranks > kNcclEpMaxRanks) {
    return Beyond(spec, "num_ranks", absl::StrCat(spec.num_ranks), absl::StrCat(kNcclEpMaxRanks));
  }
  if (spec.num_experts % spec.num_ranks != 0) {
    return Beyond(spec, "num_experts", absl::StrCat(spec.num_experts),
                  absl::StrCat("a multiple of num_ranks=", spec.num_ranks));
  }
  if (spec.num_experts / spec.num_ranks > kNcclEpMaxLocalExperts) {
    return Beyond(spec, "num_experts", absl::StrCat(spec.num_experts),
                  absl::StrCat(kNcclEpMaxLocalExperts, " experts per rank"));
  }
  // Of all teams together; of each, CheckNcclEpTeams sees to it.
  if (spec.num_experts % kNcclEpTeamMultiple != 0) {
    return Beyond(spec, "num_experts", absl::StrCat(spec.num_experts),
                  absl::StrCat("a multiple of ", kNcclEpTeamMultiple));
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

uint32_t NcclEpTeamRanks(const std::vector<NodeId>& node_of_rank) {
  uint32_t team = 0;
  uint32_t run = 0;
  for (size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    ++run;
    if (rank + 1 < node_of_rank.size() && node_of_rank[rank + 1] == node_of_rank[rank]) continue;
    team = std::gcd(team, run);
    run = 0;
  }
  return team;
}

absl::Status CheckNcclEpTeams(const GroupSpec& spec, const std::vector<NodeId>& node_of_rank) {
  if (!spec.traits().by_library()) return absl::OkStatus();
  for (const NodeId& node : node_of_rank) {
    const auto here = static_cast<uint32_t>(absl::c_count(node_of_rank, node));
    if (here <= kNcclEpMaxRanksOfNode) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "group=", text::Clean(spec.name, limits::kNameBytes), ": ", here,
        " ranks are on one node, but with backend=", spec.backend, " ", spec.traits().library,
        "'s limit is ", kNcclEpMaxRanksOfNode,
        "; place the ranks on more nodes, or ask for backend=", spec.traits().served_by));
  }
  const uint32_t ranks = NcclEpTeamRanks(node_of_rank);
  const uint32_t experts = spec.num_experts / spec.num_ranks * ranks;
  if (experts % kNcclEpTeamMultiple == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "group=", text::Clean(spec.name, limits::kNameBytes),
      ": ranks that follow each other on one node are in teams of ", ranks, ", which have ",
      experts, " of the ", spec.num_experts, " experts, but with backend=", spec.backend, " ",
      spec.traits().library, "'s limit is a multiple of ", kNcclEpTeamMultiple,
      " for each team; ask for more experts, place more ranks on each node, or ask for backend=",
      spec.traits().served_by));
}

}  // namespace epd
