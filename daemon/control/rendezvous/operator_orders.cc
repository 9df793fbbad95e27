#include "daemon/control/rendezvous/operator_orders.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/resumable.h"

namespace epd {

void OperatorOrders::Take(const NodeReport& report) {
  std::set<RequestId> reported;
  for (const Order& order : report.orders) reported.insert(order.request);
  std::erase_if(orders_, [&](const auto& entry) {
    return entry.first.first == report.node && reported.count(entry.first.second) == 0;
  });
  for (const Order& order : report.orders) {
    const auto [known, fresh] = orders_.try_emplace({report.node, order.request});
    if (!fresh) continue;
    known->second.order = order;
    known->second.deadline = changes_.now() + order.remaining;
    if (keeps_) earliest_ = std::min(earliest_, known->second.deadline);
    Execute(report.node, known->second);
  }
}

void OperatorOrders::DropNode(const NodeId& node) {
  std::erase_if(orders_, [&](const auto& entry) { return entry.first.first == node; });
}

void OperatorOrders::Execute(const NodeId& node, KnownOrder& known) {
  const Order& order = known.order;
  known.done = true;
  if (order.kind == OrderKind::kCreate) return Create(known);
  std::vector<ClusterGroup*> found;
  if (!order.group) {
    found = groups_.Tenants(order.name);
  } else if (ClusterGroup* group = groups_.Find(order.group); group != nullptr) {
    found.push_back(group);
  }
  if (found.empty()) {
    known.status = absl::NotFoundError(
        absl::StrCat(order.group ? absl::StrCat("no group has id ", order.group.value)
                                 : absl::StrCat("no group is named \"", order.name, "\""),
                     " (it may be closed); see epctl groups"));
    return;
  }
  known.group = found.front()->id;
  for (ClusterGroup* group : found) {
    known.changed.insert(group->id);
    const std::string what = Label(*group);
    const absl::Status stops = Resumable(
        absl::UnavailableError(absl::StrCat(what, " phase=draining: the epd of node ", node.value,
                                            " is stopping; join again [EPD-1306]")));
    const bool serving =
        group->state == GroupState::kReady || group->state == GroupState::kDraining;
    if (order.kind == OrderKind::kClose || !serving) {
      groups_.End(*group, order.node_stops ? GroupEvent::kFail : GroupEvent::kClose,
                  order.node_stops ? stops
                                   : absl::FailedPreconditionError(absl::StrCat(
                                         what, " was closed by an operator; join again")));
      continue;
    }
    group->deadline = std::min(group->deadline, known.deadline);
    group->cause = order.node_stops
                       ? stops
                       : absl::FailedPreconditionError(absl::StrCat(
                             what, " phase=draining: an operator is closing the group"));
    groups_.Fire(*group, GroupEvent::kDrain, group->cause);
    known.draining.insert(group->id);
  }
  known.done = known.draining.empty();
}

void OperatorOrders::Create(KnownOrder& known) {
  const GroupSpec& spec = known.order.spec;
  const auto refuse = [&](const ClusterGroup& group,
                          const std::vector<FieldDifference>& differences) {
    known.group = group.id;
    known.status = RankHeldError(group.spec, group.epoch, reports_.Holders(group), differences);
  };
  if (const ClusterGroup* group = groups_.ByName(spec.name, spec.tenant); group != nullptr) {
    const auto differences = Differences(spec, group->spec);
    if (!differences.empty() || !group->orchestrated) return refuse(*group, differences);
    known.group = group->id;  // Said twice.
    known.changed = {group->id};
    return;
  }
  for (const ClusterGroup* other : groups_.Tenants(spec.name)) {
    if (Contract(other->spec) == Contract(spec)) continue;
    return refuse(*other, Differences(Contract(spec), Contract(other->spec)));
  }
  known.group =
      groups_.Create(groups_.FreshId(known.order.proposed), spec, /*orchestrated=*/true).id;
  known.changed = {known.group};
}

bool OperatorOrders::IsKept(const KnownOrder& known) const {
  if (!keeps_) return true;
  return absl::c_all_of(known.changed, [&](GroupId id) {
    const bool lives = groups_.Has(id) && groups_.At(id).orchestrated;
    return lives == (kept_.count(id) > 0);
  });
}

void OperatorOrders::Keep(const std::vector<PersistentGroup>& kept) {
  kept_.clear();
  for (const PersistentGroup& group : kept) kept_.insert(group.id);
}

void OperatorOrders::SetKept(const std::vector<PersistentGroup>& kept) {
  Keep(kept);
  for (const auto& [key, known] : orders_) changes_.MarkNode(key.first);
}

void OperatorOrders::EndUnkept(const NodeId& node, KnownOrder& known, const std::string& why) {
  known.changed.clear();
  known.status.Update(absl::UnavailableError(
      absl::StrCat("it is done, but the store has not taken it, and a new coordinator would not "
                   "know of it; ",
                   why)));
  changes_.MarkNode(node);
}

void OperatorOrders::RefuseToKeep(const absl::Status& why) {
  for (auto& [key, known] : orders_) {
    if (!known.done || IsKept(known)) continue;
    EndUnkept(key.first, known,
              absl::StrCat("the store's problem is: ", why.message(),
                           "; mend it, then give the same order again"));
  }
}

void OperatorOrders::Expire() {
  for (auto& [key, known] : orders_) {
    if (!known.done || known.deadline > changes_.now() || IsKept(known)) continue;
    EndUnkept(key.first, known, "see epctl doctor for the store's problem, then retry");
  }
}

void OperatorOrders::TakeEnded(const EndedGroup& ended) {
  for (auto& [key, known] : orders_) {
    if (known.done || known.draining.erase(ended.id) == 0) continue;
    known.status.Update(ended.status);
    if (!known.draining.empty()) continue;
    known.done = true;
    changes_.MarkNode(key.first);
  }
}

std::vector<OrderAnswer> OperatorOrders::Answers(const NodeId& node) const {
  std::vector<OrderAnswer> out;
  for (auto it = orders_.lower_bound({node, {}}); it != orders_.end(); ++it) {
    const auto& [key, known] = *it;
    if (key.first != node) break;
    if (known.done && IsKept(known)) out.push_back({key.second, known.status, known.group});
  }
  return out;
}

void OperatorOrders::Tighten() {
  earliest_ = absl::InfiniteFuture();
  for (const auto& [key, known] : orders_) {
    if (known.done && !IsKept(known)) earliest_ = std::min(earliest_, known.deadline);
  }
}

std::vector<std::string> OperatorOrders::WaitsWithoutEnd() const {
  std::vector<std::string> out;
  for (const auto& [key, known] : orders_) {
    const bool lives =
        absl::c_any_of(known.draining, [&](GroupId group) { return groups_.Has(group); });
    if (!known.done && !lives)
      out.push_back(absl::StrCat("order ", key.second.value, " of ", key.first.value));
  }
  return out;
}

}  // namespace epd
