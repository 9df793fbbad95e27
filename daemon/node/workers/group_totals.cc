#include "daemon/node/workers/group_totals.h"

#include <algorithm>
#include <utility>

namespace epd {
namespace {

constexpr size_t kMaxFormations = 16;  // Of one group: older ones say nothing any more.

GroupTotals::Counts CountsOf(const v1::WorkerSnapshot::Tenant& told) {
  return {.num_operations = told.num_operations(),
          .num_failed = told.num_failed(),
          .num_failed_calls = told.num_failed_calls(),
          .bytes_moved = told.bytes_moved(),
          .expert_routes = {told.expert_routes().begin(), told.expert_routes().end()}};
}

// Raises `known` to `now`, and `total` by as much.
void Raise(uint64_t now, uint64_t& known, uint64_t& total) {
  if (now <= known) return;
  total += now - std::exchange(known, now);
}

void Raise(const GroupTotals::Counts& now, GroupTotals::Counts& known, GroupTotals::Counts& total) {
  Raise(now.num_operations, known.num_operations, total.num_operations);
  Raise(now.num_failed, known.num_failed, total.num_failed);
  Raise(now.num_failed_calls, known.num_failed_calls, total.num_failed_calls);
  Raise(now.bytes_moved, known.bytes_moved, total.bytes_moved);
  // They are not told of a formation that has ended, nor where there are too many of them.
  const size_t num_experts = now.expert_routes.size();
  known.expert_routes.resize(std::max(known.expert_routes.size(), num_experts));
  total.expert_routes.resize(std::max(total.expert_routes.size(), num_experts));
  for (size_t e = 0; e < num_experts; ++e)
    Raise(now.expert_routes[e], known.expert_routes[e], total.expert_routes[e]);
}

}  // namespace

void GroupTotals::Take(Incarnation run, const v1::WorkerSnapshot& snapshot) {
  ++num_snapshots_;
  if (std::exchange(run_, run) != run) {
    for (auto& [id, group] : groups_) group.told.clear();
  }
  for (const v1::WorkerSnapshot::Tenant& line : snapshot.tenants()) {
    Group& group = groups_[GroupId(line.group_id())];
    group.heard = num_snapshots_;
    Raise(CountsOf(line), group.told[Formation(line.formation())], group.total);
    if (group.told.size() > kMaxFormations) group.told.erase(group.told.begin());
  }
  while (groups_.size() > max_groups_) {
    groups_.erase(std::min_element(
        groups_.begin(), groups_.end(),
        [](const auto& a, const auto& b) { return a.second.heard < b.second.heard; }));
  }
}

void GroupTotals::AddFailedCalls(GroupId group, uint64_t num_calls) {
  const auto found = groups_.find(group);
  if (found != groups_.end()) found->second.total.num_failed_calls += num_calls;
}

GroupTotals::Counts GroupTotals::Of(GroupId group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? Counts{} : found->second.total;
}

}  // namespace epd
