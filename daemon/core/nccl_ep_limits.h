// What NCCL EP can serve: said before a group forms, since the library ends its process where it is asked
// for more.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/group_spec.h"

namespace epd {

// Of each expert's zone; receive buffers of the library are whole multiples of it, so that no padding
// ever overflows one.
inline constexpr uint32_t kNcclEpMaxAlignment = 128;
// Of the most tokens per rank. Builds of its version before 28 Jun 2026 refuse anything else on several nodes.
inline constexpr uint32_t kNcclEpTokenMultiple = 64;
inline constexpr uint32_t kNcclEpRowMultiple = 16;  // Bytes.
inline constexpr uint32_t kNcclEpMaxHidden = 16384;
// Of the kernels that bring rows to their experts where buffers are no windows of NCCL (launch_dispatch_permute).
inline constexpr uint32_t kNcclEpMaxLocalExperts = 256;
inline constexpr uint32_t kNcclEpTeamMultiple =
    4;  // Of the experts of a team: the weights of a row go in 16 bytes each.
inline constexpr uint32_t kNcclEpMaxTopK = 32;
// As its release notes have it: 8 nodes of 8 GPUs.
inline constexpr uint32_t kNcclEpMaxRanks = 64;
inline constexpr uint32_t kNcclEpMaxRanksOfNode = 8;

// Whether it can serve groups of this spec, as far as the spec tells; OK for other backends.
//   INVALID_ARGUMENT  which limit, what was got, and backend=cuda
absl::Status CheckNcclEpLimits(const GroupSpec& spec);

// The ranks of a team that reach each other's memory. All teams have as many, which follow each other: a divisor of the lengths
// of all runs of ranks on one node (NCCL's computeLsaSize).
uint32_t NcclEpTeamRanks(const std::vector<NodeId>& node_of_rank);

// Whether it can serve groups of this spec with the ranks on these nodes; OK for other backends.
//   FAILED_PRECONDITION  a node has more than 8 ranks, or a team has experts that are no multiple of 4: how many, and
//                        backend=cuda
absl::Status CheckNcclEpTeams(const GroupSpec& spec, const std::vector<NodeId>& node_of_rank);

}  // namespace epd
