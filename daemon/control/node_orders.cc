// Operators, shutdown, time, reports and status.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/control/node_impl.h"

namespace epd {

void NodeControl::Impl::On(const CreateRequested& event) {
  if (absl::Status status = Validate(event.spec); !status.ok()) {
    Emit(RpcDone{event.request, status, GroupId{}});
    return;
  }
  Order order;
  order.request = event.request;
  order.kind = OrderKind::kCreate;
  order.spec = event.spec;
  order.proposed = event.proposed;
  AddOrder(std::move(order), event.deadline, /*internal=*/false);
}

void NodeControl::Impl::On(const DrainRequested& event) {
  Order order;
  order.request = event.request;
  order.kind = OrderKind::kDrain;
  order.group = event.group;
  order.name = event.name;
  AddOrder(std::move(order), event.deadline, /*internal=*/false);
}

void NodeControl::Impl::On(const CloseRequested& event) {
  Order order;
  order.request = event.request;
  order.kind = OrderKind::kClose;
  order.group = event.group;
  order.name = event.name;
  AddOrder(std::move(order), event.deadline, /*internal=*/false);
}

void NodeControl::Impl::AddOrder(Order order, absl::Time deadline, bool internal) {
  const RequestId request = order.request;
  if (deadline == absl::InfiniteFuture()) {
    Emit(RpcDone{request, absl::InvalidArgumentError("the request has no deadline"), GroupId{}});
    return;
  }
  orders_[request] = {std::move(order), deadline, internal};
  dirty_ = true;
}

void NodeControl::Impl::TakeOrderAnswers(const ClusterView& view) {
  for (const OrderAnswer& answer : view.orders) {
    const auto it = orders_.find(answer.request);
    if (it == orders_.end()) continue;
    if (!it->second.internal) Emit(RpcDone{answer.request, answer.status, answer.group});
    orders_.erase(it);
    dirty_ = true;
  }
}

void NodeControl::Impl::On(const ShutdownRequested& event) {
  if (shutdown_deadline_.has_value()) {
    shutdown_deadline_ = std::min(*shutdown_deadline_, event.deadline);
    return;
  }
  shutdown_deadline_ = event.deadline;
  std::map<GroupId, bool> serving;
  for (auto& [key, member] : members_) {
    if (member.state == MembershipState::kReleased) continue;
    if (member.state == MembershipState::kWaiting) {
      FailMember(member, absl::UnavailableError("epd is shutting down; retry once it is back"));
    } else {
      serving[member.claim.group] = true;
    }
  }
  for (const auto& [group, yes] : serving) {
    Order order;
    order.request = RequestId{next_internal_request_++};
    order.kind = OrderKind::kDrain;
    order.group = group;
    AddOrder(std::move(order), event.deadline, /*internal=*/true);
  }
}

void NodeControl::Impl::AdvanceShutdown() {
  if (!shutdown_deadline_.has_value() || shutdown_done_) return;
  const bool late = now_ >= *shutdown_deadline_;
  const absl::Status bye = absl::UnavailableError("epd is shutting down; retry once it is back");
  for (auto& [key, member] : members_) {
    if (member.state == MembershipState::kReleased) continue;
    if (!late) return;
    FailMember(member, bye);
  }
  for (auto& [id, group] : groups_) EndLocalTenants(group, bye);
  for (auto& [id, session] : sessions_) {
    const auto next = kSessionTransitions.Next(session.state, SessionEvent::kEnd);
    if (!next.has_value()) continue;  // Told already.
    session.state = *next;
    Emit(EndSession{id, bye});
  }
  shutdown_done_ = true;
  Emit(ShutdownDone{});
}

void NodeControl::Impl::On(const Tick&) { Expire(); }

// A coordinator that answers is earlier and says more; this is for one that does not.
void NodeControl::Impl::Expire() {
  const absl::Duration grace = options_.coordinator_grace;
  for (auto& [key, member] : members_) {
    if (member.state == MembershipState::kReleased) continue;
    const bool joining = member.state == MembershipState::kWaiting;
    if (now_ < member.deadline + (joining ? grace : absl::ZeroDuration())) continue;
    const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        "group=", Title(member.claim.spec), " ", Describe(member, std::string(Name(member.state))),
        ": not READY in time, and the coordinator has not said why",
        connected_ ? "" : " (it cannot be reached)",
        member.waits_for.ok() ? "" : absl::StrCat("; waits for: ", member.waits_for.message()),
        "; check the coordinator with epctl doctor and join again"));
    FailMember(member, status);
    const auto group = groups_.find(member.claim.group);
    if (group != groups_.end()) EndLocalTenants(group->second, status);
  }
  for (auto it = orders_.begin(); it != orders_.end();) {
    if (now_ < it->second.deadline + grace) {
      ++it;
      continue;
    }
    if (!it->second.internal) {
      Emit(RpcDone{
          it->first,
          absl::DeadlineExceededError(absl::StrCat("the coordinator has not answered",
                                                   connected_ ? "" : ", it cannot be reached",
                                                   "; see epctl doctor, then retry")),
          it->second.order.group});
    }
    it = orders_.erase(it);
    dirty_ = true;
  }
}

void NodeControl::Impl::ReportWork(NodeReport& report) const {
  for (const auto& [id, communicator] : communicators_) {
    for (const auto& [name, member] : communicator.members) {
      report.work.push_back(member.work);
      if (communicator.id_stays) report.work.back().id = UniqueId();
    }
  }
  for (const auto& [id, group] : groups_) {
    for (const auto& [name, tenant] : group.tenants) {
      report.work.push_back(tenant.work);
      if (group.view.started && group.heard_from == reported_to_)
        report.work.back().heard = group.view.formation;
    }
  }
}

void NodeControl::Impl::Report() {
  if (!connected_ || (!dirty_ && now_ < next_report_)) return;
  dirty_ = false;
  next_report_ = now_ + options_.report_interval;
  NodeReport report;
  report.node = options_.node;
  report.incarnation = options_.incarnation;
  report.seq = ++report_seq_;
  report.coordinator = reported_to_;
  report.max_epoch = max_epoch_;
  report.max_formation = max_formation_;
  report.facts = options_.facts;
  for (const auto& [name, worker] : workers_) {
    report.workers.push_back({name, worker.incarnation, worker.has_nccl, worker.nccl_problem,
                              worker.nccl_version, worker.wire_address, worker.local_address});
    if (!name.on_gpu()) report.facts.nccl_version = worker.nccl_version;
  }
  for (const auto& [key, member] : members_) {
    Claim claim = member.claim;
    if (member.state == MembershipState::kWaiting) {
      claim.remaining = std::max(absl::ZeroDuration(), member.deadline - now_);
    }
    report.claims.push_back(std::move(claim));
  }
  ReportWork(report);
  for (const auto& [request, local] : orders_) {
    Order order = local.order;
    order.remaining = std::max(absl::ZeroDuration(), local.deadline - now_);
    report.orders.push_back(std::move(order));
  }
  Emit(SendReport{std::move(report)});
}

absl::Time NodeControl::Impl::NextDeadline() const {
  absl::Time next = connected_ ? next_report_ : absl::InfiniteFuture();
  for (const auto& [key, member] : members_) {
    if (member.state == MembershipState::kReleased) continue;
    const bool joining = member.state == MembershipState::kWaiting;
    next = std::min(
        next, member.deadline + (joining ? options_.coordinator_grace : absl::ZeroDuration()));
  }
  for (const auto& [request, order] : orders_)
    next = std::min(next, order.deadline + options_.coordinator_grace);
  if (shutdown_deadline_.has_value() && !shutdown_done_) next = std::min(next, *shutdown_deadline_);
  return next;
}

std::vector<std::string> NodeControl::Impl::WaitsWithoutEnd() const {
  std::vector<std::string> out;
  for (const auto& [key, member] : members_) {
    const bool waits = member.state == MembershipState::kWaiting || member.told_to_wait;
    if (member.state == MembershipState::kReleased || !waits) continue;
    if (member.deadline == absl::InfiniteFuture()) {
      out.push_back(
          absl::StrCat("session ", key.first.value, " in group ", member.claim.spec.name));
    }
  }
  for (const auto& [request, order] : orders_) {
    if (order.deadline == absl::InfiniteFuture())
      out.push_back(absl::StrCat("request ", request.value));
  }
  return out;
}

std::vector<WorkerStatus> NodeControl::Impl::Workers() const {
  std::vector<WorkerStatus> out;
  for (const auto& [name, worker] : workers_) out.push_back(worker);
  return out;
}

std::vector<SessionStatus> NodeControl::Impl::Sessions() const {
  std::vector<SessionStatus> out;
  for (const auto& [id, session] : sessions_) out.push_back(session);
  return out;
}

std::vector<MembershipStatus> NodeControl::Impl::Memberships() const {
  std::vector<MembershipStatus> out;
  for (const auto& [key, member] : members_) {
    if (member.state == MembershipState::kReleased) continue;
    out.push_back({key.first, key.second, member.state, member.claim.spec.name,
                   member.claim.spec.tenant, member.claim.group, member.claim.ranks,
                   member.claim.joined, member.since, member.deadline, member.waits_for});
  }
  return out;
}

std::vector<LocalGroupStatus> NodeControl::Impl::Groups() const {
  std::vector<LocalGroupStatus> out;
  for (const auto& [id, group] : groups_) {
    LocalGroupStatus status;
    status.view = group.view;
    status.since = group.since;
    for (const auto& [name, tenant] : group.tenants) {
      const TenantPhase phase = tenant.running ? tenant.work.phase : TenantPhase::kNone;
      status.tenant = status.workers.empty() ? phase : std::min(status.tenant, phase);
      status.tenant_formation = tenant.work.formation;
      status.workers.push_back(name);
    }
    const LocalCommunicator& shared = communicators_.at(group.view.communicator);
    for (const auto& [name, member] : shared.members) {
      if (member.work.init_epoch != group.view.epoch || !group.view.epoch) continue;
      status.id_digest = member.work.init_sha256.empty()
                             ? shared.no_id_reason
                             : absl::BytesToHexString(member.work.init_sha256);
    }
    out.push_back(std::move(status));
  }
  std::sort(out.begin(), out.end(), [](const LocalGroupStatus& a, const LocalGroupStatus& b) {
    return std::tie(a.view.spec.name, a.view.spec.tenant, a.view.id) <
           std::tie(b.view.spec.name, b.view.spec.tenant, b.view.id);
  });
  return out;
}

}  // namespace epd
