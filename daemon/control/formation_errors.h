// The texts of errors that a whole group gets: complete lists, so that nobody has to ask every
// rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/control/snapshots.h"
#include "daemon/core/group_spec.h"
#include "daemon/core/ids.h"
#include "daemon/core/rank_holder.h"

namespace epd {

// A rank's holder and how far it is, e.g. "arrived", "not_drained", "worker_down".
struct RankPhase {
  RankHolder holder;
  std::string phase;
  // How long ago its node last spoke of it; negative: not known.
  absl::Duration last_seen = -absl::Seconds(1);
};

// One session's Join and what it brought.
struct SpecBrought {
  RankHolder who;  // `rank` is the first of `ranks`.
  std::vector<Rank> ranks;
  GroupSpec spec;
};

// INVALID_ARGUMENT: names each differing field with both values, and the ranks that differ from the
// spec that most ranks brought (at a tie: the lowest rank, so that the text is the same whoever came first).
absl::Status SpecMismatchError(const GroupSpec& creator, const std::vector<SpecBrought>& brought);

// INVALID_ARGUMENT: two sessions asked for one rank while the group was forming.
absl::Status RankClaimedTwiceError(const GroupSpec& spec, const RankHolder& holder,
                                   const RankHolder& other);

// ALREADY_EXISTS: `holders` are living holders of ranks that the caller asked for; `differences`
// may be empty.
absl::Status RankHeldError(const GroupSpec& spec, Epoch epoch,
                           const std::vector<RankPhase>& holders,
                           const std::vector<FieldDifference>& differences);

// INVALID_ARGUMENT: another tenant (`present`) serves the group with another spec.
absl::Status TenantSpecError(const RankHolder& who, const GroupSpec& brought,
                             const GroupSpec& present);

// UNIMPLEMENTED: the CPU's worker would serve one rank of the group, and a GPU's another.
absl::Status MixedWorkersError(const GroupSpec& spec, const RankHolder& got,
                               const RankHolder& expected);

// INVALID_ARGUMENT: another tenant of the group has this rank on another node or worker.
absl::Status TenantWorkerError(const GroupSpec& spec, const RankHolder& got,
                               const RankHolder& expected, const std::string& other_tenant);

// Everything about a formation that is late: four sets, each complete. The text names so many of
// each; the whole stands in the report.
inline constexpr size_t kMaxNamedInText = 64;

struct FormationReport {
  std::string name;
  std::string title;  // Title() of the group's spec.
  Epoch epoch;
  GroupState state = GroupState::kForming;
  absl::Duration allowed;
  std::vector<RankPhase> arrived;
  std::vector<Rank> missing;     // All ranks that nobody holds ...
  std::vector<RankPhase> dead;   // ... and who held them last.
  std::vector<RankPhase> wrong;  // Brought another spec, instance or an old epoch: the phase says.
  absl::Status cause;            // Why a group that had been READY forms again.
  std::map<WorkerId, std::string> down =
      {};  // Workers that its ranks wait for, and what is known of why.
};

// DEADLINE_EXCEEDED with arrived, missing, dead and wrong ranks.
absl::Status FormationLateError(const FormationReport& late);

// A worker of a group and what must agree.
struct NodeToCompare {
  WorkerId worker;
  size_t num_ranks = 0;
  NodeFacts facts;
};

// FAILED_PRECONDITION: names what differs, and the nodes that differ from what most ranks have.
// `check_nccl`: the group needs NCCL, so its version and the driver's must agree, too.
absl::Status CompareNodes(const std::string& group, const std::vector<NodeToCompare>& nodes,
                          bool check_nccl);
inline constexpr absl::Duration kMaxClockOffset = absl::Minutes(1);

// "rank 0 is also claimed by ...": for the group that holds it.
std::string DescribeRival(const RivalClaim& rival);

// What to do where two jobs may have met; the same words in every text.
inline constexpr absl::string_view kSeparateJobs =
    "if two jobs met under one name, give the jobs different job=/EPD_JOB (in C: another group "
    "name "
    "or instance)";

// "node a7" of the CPU's worker, "node a7 cuda:1" of a GPU's.
std::string Named(const WorkerId& worker);

// "rank=2 host=a7 pid=4711 phase=arrived; rank=3 ...", or "none".
std::string DescribeAll(const std::vector<RankPhase>& ranks);

}  // namespace epd
