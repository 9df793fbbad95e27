// Forms one group over many nodes with the real control code and no network, and prints one line of
// JSON: time, messages, memory. tests/scale/run sets it beside the same over gRPC.
//   scale [RANKS_PER_NODE [RANKS]]
// Or lets all ranks of one node's group leave it, one after the other; or lets one user ask for many groups.
//   scale leave
//   scale joins
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "tests/unit/daemon/control/small_cluster.h"

namespace epd {
namespace {

void Form(size_t num_ranks, size_t ranks_per_node) {
  const size_t num_nodes = num_ranks / ranks_per_node;
  const absl::Time begin = absl::Now();
  SmallCluster cluster(num_nodes);
  cluster.keep_members = false;  // A copy for each session would be most of the memory.
  GroupSpec spec = SmallSpec(static_cast<uint32_t>(num_ranks));
  uint64_t session = 0;
  for (size_t node = 0; node < num_nodes; ++node) {
    for (size_t i = 0; i < ranks_per_node; ++i) {
      const auto rank = static_cast<uint32_t>(session++);
      cluster.AttachAndJoin(node, session, spec, {rank});
    }
  }
  const bool ready = cluster.Group().state == GroupState::kReady;
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"ranks\": %zu, \"nodes\": %zu, \"ready\": %s, \"form_s\": %.3f, \"reports\": %zu, "
      "\"views\": %zu, \"peak_mib\": %ld}\n",
      num_ranks, num_nodes, ready ? "true" : "false", seconds, cluster.num_reports,
      cluster.num_views, usage.ru_maxrss / 1024);
}

void Leave(size_t num_ranks) {
  SmallCluster cluster(1);
  cluster.keep_members = false;
  const GroupSpec spec = SmallSpec(static_cast<uint32_t>(num_ranks));
  for (uint32_t rank = 0; rank < num_ranks; ++rank)
    cluster.AttachAndJoin(0, rank + 1, spec, {rank});
  const GroupId group = cluster.Group().id;
  const size_t reports = cluster.num_reports, views = cluster.num_views;
  const absl::Time begin = absl::Now();
  for (uint64_t session = 1; session <= num_ranks; ++session)
    cluster.Give(0, LeaveRequested{SessionId{session}, RequestId{2}, group});
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  size_t reforms = 0;
  for (const auto& [session, told] : cluster.reforms) reforms += told.size();
  std::printf(
      "{\"ranks\": %zu, \"leave_s\": %.3f, \"left\": %zu, \"reforms\": %zu, \"reports\": %zu, "
      "\"views\": %zu, \"transitions\": %zu}\n",
      num_ranks, seconds, cluster.left.size(), reforms, cluster.num_reports - reports,
      cluster.num_views - views, cluster.transitions.size());
}

// Of sessions that each ask for a rank of every group; no group is complete.
void Join(size_t num_sessions, size_t num_groups, uint32_t num_experts) {
  SmallCluster cluster(1);
  GroupSpec spec = SmallSpec(1024);
  if (num_experts > 0) spec.num_experts = num_experts;
  std::vector<Rank> owners;
  for (uint32_t e = 0; e < num_experts; ++e) owners.emplace_back(e % 1024);
  for (uint64_t session = 1; session <= num_sessions; ++session) cluster.Attach(0, session);
  const auto join = [&](size_t group, size_t session) {
    spec.name = absl::StrCat("g", group);
    if (!owners.empty()) spec.expert_owner = owners;  // Each has its own, as from the socket.
    cluster.Join(0, session, group + 1, spec, {static_cast<uint32_t>(session)});
  };
  const absl::Time begin = absl::Now();
  absl::Duration last;
  for (size_t session = 1; session <= num_sessions; ++session) {
    for (size_t group = 0; group < num_groups; ++group) {
      const absl::Time before = absl::Now();
      join(group, session);
      last = absl::Now() - before;
    }
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  const absl::Time before = absl::Now();
  join(0, 1);  // Refused: it has joined.
  std::printf(
      "{\"sessions\": %zu, \"groups\": %zu, \"experts\": %u, \"join_s\": %.3f, \"last_join_ms\": "
      "%.3f, \"refused_join_ms\": %.3f}\n",
      num_sessions, num_groups, num_experts, seconds, absl::ToDoubleMilliseconds(last),
      absl::ToDoubleMilliseconds(absl::Now() - before));
}

}  // namespace
}  // namespace epd

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "leave") {
    for (const size_t num_ranks : {240, 480, 1024, 2048}) epd::Leave(num_ranks);
    return 0;
  }
  if (what == "joins") {
    for (const size_t num_sessions : {1, 4, 10}) {
      for (const uint32_t num_experts : {0, 16384}) epd::Join(num_sessions, 50, num_experts);
    }
    return 0;
  }
  const size_t ranks_per_node = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 8;
  if (argc > 2) {
    epd::Form(std::strtoul(argv[2], nullptr, 10), ranks_per_node);
    return 0;
  }
  for (const size_t num_ranks : {64, 256, 1024, 4096}) epd::Form(num_ranks, ranks_per_node);
  return 0;
}
