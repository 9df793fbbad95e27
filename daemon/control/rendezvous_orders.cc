// What operators want done to groups.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/control/rendezvous_impl.h"

namespace epd {

void Rendezvous::Impl::TakeOrders(const NodeReport& report) {
  KnownNode& node = nodes_.at(report.node);
  std::set<RequestId> reported;
  for (const Order& order : report.orders) reported.insert(order.request);
  for (auto it = node.orders.begin(); it != node.orders.end();) {
    it = reported.count(it->first) == 0 ? node.orders.erase(it) : std::next(it);
  }
  for (const Order& order : report.orders) {
    const auto [known, fresh] = node.orders.try_emplace(order.request);
    if (!fresh) continue;
    known->second.order = order;
    known->second.deadline = now_ + order.remaining;
    if (options_.keeps_persistent) earliest_ = std::min(earliest_, known->second.deadline);
    Execute(known->second);
  }
}

void Rendezvous::Impl::Execute(KnownOrder& known) {
  const Order& order = known.order;
  known.done = true;
  if (order.kind == OrderKind::kCreate) {
    CreateByOrder(known);
    return;
  }
  std::vector<GroupId> ids;
  if (!order.group) {
    for (const ClusterGroup* tenant : TenantsOf(order.name)) ids.push_back(tenant->id);
  } else if (groups_.count(order.group) > 0) {
    ids.push_back(order.group);
  }
  if (ids.empty()) {
    known.status =
        absl::NotFoundError(order.group ? absl::StrCat("no group has id ", order.group.value,
                                                       " (it may be closed); see epctl groups")
                                        : absl::StrCat("no group is named \"", order.name,
                                                       "\" (it may be closed); see epctl groups"));
    return;
  }
  known.group = ids.front();
  known.changed = {ids.begin(), ids.end()};
  for (const GroupId id : ids) {
    const auto group = groups_.find(id);
    if (group != groups_.end() && !ExecuteOn(group->second, known)) known.draining.insert(id);
  }
  known.done = known.draining.empty();
}

bool Rendezvous::Impl::ExecuteOn(ClusterGroup& group, const KnownOrder& known) {
  const std::string what = absl::StrCat("group=", Title(group.spec), " epoch=", group.epoch.value);
  const bool serving = group.state == GroupState::kReady || group.state == GroupState::kDraining;
  if (known.order.kind == OrderKind::kClose || !serving) {
    End(group, GroupEvent::kClose,
        absl::FailedPreconditionError(
            absl::StrCat(what, " was closed by an operator; join again")));
    return true;
  }
  group.deadline = std::min(group.deadline, known.deadline);
  Fire(group, GroupEvent::kDrain,
       absl::FailedPreconditionError(
           absl::StrCat(what, " phase=draining: an operator is closing the group")));
  return false;
}

void Rendezvous::Impl::CreateByOrder(KnownOrder& known) {
  const Order& order = known.order;
  ClusterGroup* group = ByName(order.spec.name, order.spec.tenant);
  if (group != nullptr) {
    const auto differences = Differences(order.spec, group->spec);
    known.group = group->id;
    if (differences.empty() && group->orchestrated) {  // Said twice.
      known.changed = {group->id};
      return;
    }
    known.status = RankHeldError(group->spec, group->epoch, HoldersOf(*group, {}), differences);
    return;
  }
  for (const ClusterGroup* other : TenantsOf(order.spec.name)) {
    if (Contract(other->spec) == Contract(order.spec)) continue;
    known.group = other->id;
    known.status = RankHeldError(other->spec, other->epoch, HoldersOf(*other, {}),
                                 Differences(Contract(order.spec), Contract(other->spec)));
    return;
  }
  known.group = Create(FreshId(order.proposed), order.spec, /*orchestrated=*/true).id;
  known.changed = {known.group};
}

bool Rendezvous::Impl::IsKept(const KnownOrder& order) const {
  if (!options_.keeps_persistent) return true;
  return std::all_of(order.changed.begin(), order.changed.end(), [&](GroupId id) {
    const auto group = groups_.find(id);
    const bool lives = group != groups_.end() && group->second.orchestrated;
    return lives == (kept_.count(id) > 0);
  });
}

Rendezvous::Effects Rendezvous::Impl::OnKept(absl::Time now,
                                             const std::vector<PersistentGroup>& kept) {
  now_ = std::max(now_, now);
  kept_.clear();
  for (const PersistentGroup& group : kept) kept_.insert(group.id);
  for (const auto& [id, node] : nodes_) {
    if (!node.orders.empty()) dirty_nodes_.insert(id);
  }
  return Finish();
}

// What was ordered is done, but nobody promises that it stays so.
void Rendezvous::Impl::ExpireOrders() {
  for (auto& [id, node] : nodes_) {
    for (auto& [request, known] : node.orders) {
      if (!known.done || known.deadline > now_ || IsKept(known)) continue;
      known.changed.clear();
      known.status.Update(absl::UnavailableError(absl::StrCat(
          "it is done, but the store has not taken it, and a new coordinator would not know of it; "
          "see epctl doctor for the store's problem, then retry")));
      dirty_nodes_.insert(id);
    }
  }
}

void Rendezvous::Impl::FinishOrdersOf(GroupId group, const absl::Status& status) {
  for (auto& [id, node] : nodes_) {
    for (auto& [request, known] : node.orders) {
      if (known.done || known.draining.erase(group) == 0) continue;
      known.status.Update(status);
      if (!known.draining.empty()) continue;
      known.done = true;
      dirty_nodes_.insert(id);
    }
  }
}

}  // namespace epd
