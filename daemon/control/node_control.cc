// How a node's parts work together: every event changes the records, then each group's view is
// compared with what workers and sessions have been told and they are told the difference; at the
// end the report goes out if it has changed.
#include "daemon/control/node_control.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "daemon/control/node/attached_sessions.h"
#include "daemon/control/node/coordinator_link.h"
#include "daemon/control/node/local_communicators.h"
#include "daemon/control/node/local_groups.h"
#include "daemon/control/node/local_workers.h"
#include "daemon/control/node/membership_table.h"
#include "daemon/control/node/outbox.h"
#include "daemon/control/node/pending_orders.h"
#include "daemon/control/node_state.h"
#include "daemon/core/resumable.h"

namespace epd {
namespace {

absl::Status ShuttingDownError() {
  return absl::UnavailableError("epd is shutting down; retry once it is back");
}

// Changes no group before the coordinator has answered. Clients may send many.
bool IsAsked(const NodeEvent& event) {
  return std::holds_alternative<SessionAttached>(event) ||
         std::holds_alternative<JoinRequested>(event);
}

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

struct NodeControl::Parts {
  explicit Parts(const NodeOptions& options)
      : link(options),
        workers(options.workers, outbox),
        sessions(outbox),
        memberships(options.coordinator_grace, workers, link, outbox),
        communicators(options.node, workers, link, outbox),
        groups(options.node, workers, link, memberships, communicators, outbox),
        orders(options.coordinator_grace, outbox) {}

  void Take(const NodeEvent& event);
  void Attach(const SessionAttached& event);
  void DropSession(const SessionGone& event);
  void Drain(const SessionDrained& event);
  void Join(const JoinRequested& event);
  absl::Status CheckSession(const AttachedSession& session) const;
  absl::Status CheckGroups(const JoinRequested& event) const;
  void Leave(const LeaveRequested& event);
  void TakeView(const ClusterView& view);
  void BeginShutdown(absl::Time deadline);
  void AdvanceShutdown();
  // A coordinator that answers is earlier and says more; this is for one that does not.
  void Expire();
  void Report(const NodeFacts& facts);

  Outbox outbox;
  CoordinatorLink link;
  LocalWorkers workers;
  AttachedSessions sessions;
  MembershipTable memberships;
  LocalCommunicators communicators;
  LocalGroups groups;
  PendingOrders orders;
  std::optional<absl::Time> shutdown_deadline;
  bool shutdown_done = false;
};

void NodeControl::Parts::Take(const NodeEvent& event) {
  std::visit(Overloaded{
                 [&](const SessionAttached& e) { Attach(e); },
                 [&](const SessionGone& e) { DropSession(e); },
                 [&](const JoinRequested& e) { Join(e); },
                 [&](const LeaveRequested& e) { Leave(e); },
                 [&](const SessionDrained& e) { Drain(e); },
                 [&](const WorkerAdded& e) { workers.Add(e); },
                 [&](const WorkerStarted& e) { workers.Start(e); },
                 [&](const WorkerDied& e) {
                   if (workers.End(e)) groups.LoseWorker(e);
                 },
                 [&](const TenantReady& e) { groups.TakeReady(e); },
                 [&](const TenantFailed& e) { groups.TakeFailed(e); },
                 [&](const TenantBroken& e) { groups.TakeBroken(e); },
                 [&](const TenantDrained& e) { groups.TakeDrained(e); },
                 [&](const UniqueIdMade& e) { communicators.TakeId(e); },
                 [&](const CommunicatorInitialised& e) { communicators.TakeInitialised(e); },
                 [&](const CoordinatorConnected& e) {
                   link.Connect(e.coordinator);
                   outbox.MarkChanged();
                 },
                 [&](const ViewReceived& e) { TakeView(e.view); },
                 [&](const CoordinatorLost& e) { link.Lose(e.cause); },
                 [&](const OrderRequested& e) { orders.Take(e); },
                 [&](const ShutdownRequested& e) { BeginShutdown(e.deadline); },
                 [&](const Tick&) { Expire(); },
             },
             event);
}

void NodeControl::Parts::Attach(const SessionAttached& event) {
  sessions.Attach(event);
  if (shutdown_deadline.has_value()) sessions.End(event.session, ShuttingDownError());
}

void NodeControl::Parts::DropSession(const SessionGone& event) {
  if (!sessions.Remove(event.session)) return;
  for (const LostMember& lost : memberships.Drop(event.session, event.reason)) groups.Lose(lost);
}

void NodeControl::Parts::Drain(const SessionDrained& event) {
  if (const absl::Status taken = memberships.TakeDrained(event); !taken.ok())
    sessions.End(event.session, taken);
}

absl::Status NodeControl::Parts::CheckSession(const AttachedSession& session) const {
  if (session.state != SessionState::kAttached)
    return absl::FailedPreconditionError("the session is ending; attach again");
  return shutdown_deadline.has_value() ? ShuttingDownError() : absl::OkStatus();
}

absl::Status NodeControl::Parts::CheckGroups(const JoinRequested& event) const {
  const std::string& name = event.spec.name;
  if (memberships.index().HasName(name)) return absl::OkStatus();
  size_t num_names = memberships.index().num_names();
  for (const std::string_view other : groups.Names()) {
    if (other == name) return absl::OkStatus();
    if (!memberships.index().HasName(std::string(other))) ++num_names;
  }
  if (num_names < event.limits.max_groups) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("group=", Title(event.spec), ": this node has ", num_names,
                   " groups, its limit (max_groups); close some or raise it"));
}

void NodeControl::Parts::Join(const JoinRequested& event) {
  const AttachedSession* session = sessions.Find(event.session);
  if (session == nullptr) return;
  absl::Status status = CheckSession(*session);
  if (status.ok()) status = CheckGroups(event);
  if (status.ok()) status = memberships.Join(event, session->client);
  if (!status.ok()) outbox.Add(ReplyFailed{event.session, event.request, status});
}

void NodeControl::Parts::Leave(const LeaveRequested& event) {
  if (sessions.Find(event.session) == nullptr) return;
  const absl::StatusOr<std::vector<LostMember>> left = memberships.Leave(event);
  if (left.ok()) {
    for (const LostMember& lost : *left) groups.Lose(lost);
  }
  outbox.Add(ReplyLeft{event.session, event.request, left.status()});
}

void NodeControl::Parts::TakeView(const ClusterView& view) {
  if (!link.Accept(view)) return;
  memberships.ForgetSeen(view.report_seq);
  groups.Take(view);
  memberships.TakeAnswers(view);
  orders.TakeAnswers(view);
}

void NodeControl::Parts::BeginShutdown(absl::Time deadline) {
  if (shutdown_deadline.has_value()) {
    shutdown_deadline = std::min(*shutdown_deadline, deadline);
    return;
  }
  shutdown_deadline = deadline;
  const std::set<GroupId> serving = memberships.JoinedGroups();
  memberships.FailWaiting(ShuttingDownError());
  for (const GroupId group : serving) orders.DrainOwn(group, deadline);
}

void NodeControl::Parts::AdvanceShutdown() {
  if (!shutdown_deadline.has_value() || shutdown_done) return;
  if (memberships.AnyHeld() && outbox.now() < *shutdown_deadline) return;
  const absl::Status why = Resumable(ShuttingDownError());
  memberships.FailAll(why);
  groups.EndAllTenants(why);
  sessions.EndAll(why);
  shutdown_done = true;
  outbox.Add(ShutdownDone{});
}

void NodeControl::Parts::Expire() {
  for (const MembershipTable::Key& key : memberships.Expired()) {
    const GroupId group = memberships.At(key).claim.group;
    const absl::Status late = memberships.LateError(key);
    memberships.Fail(key, late);
    groups.EndTenants(group, late);
  }
  orders.Expire(link.why_not());
}

void NodeControl::Parts::Report(const NodeFacts& facts) {
  if (!link.connected() || (!outbox.changed() && outbox.now() < link.next_report())) return;
  outbox.ClearChanged();
  NodeReport report = link.Begin(outbox.now());
  report.facts = facts;
  workers.PutInto(report);
  memberships.PutInto(report);
  communicators.PutInto(report);
  groups.PutInto(report);
  orders.PutInto(report);
  outbox.Add(SendReport{std::move(report)});
}

NodeControl::NodeControl(const NodeOptions& options)
    : options_(options), parts_(std::make_unique<Parts>(options)) {}
NodeControl::~NodeControl() = default;

NodeControl::Effects NodeControl::Handle(absl::Time now, const NodeEvent& event) {
  Effects effects = Take(now, event);
  for (NodeEffect& effect : Report(now)) effects.push_back(std::move(effect));
  return effects;
}

NodeControl::Effects NodeControl::Take(absl::Time now, const NodeEvent& event) {
  parts_->outbox.Begin(now);
  parts_->Take(event);
  if (!IsAsked(event)) parts_->groups.Reconcile();
  parts_->AdvanceShutdown();
  return parts_->outbox.TakeEffects();
}

NodeControl::Effects NodeControl::Report(absl::Time now) {
  parts_->outbox.Begin(now);
  parts_->Report(options_.facts);
  return parts_->outbox.TakeEffects();
}

absl::Time NodeControl::NextDeadline() const {
  const absl::Time next = std::min({parts_->link.next_report(), parts_->memberships.NextDeadline(),
                                    parts_->orders.NextDeadline()});
  const bool ends = parts_->shutdown_deadline.has_value() && !parts_->shutdown_done;
  return ends ? std::min(next, *parts_->shutdown_deadline) : next;
}

std::vector<MembershipStatus> NodeControl::Memberships() const {
  return parts_->memberships.Statuses();
}
bool NodeControl::HoldsStaging(SessionId session) const {
  return parts_->memberships.HoldsStaging(session);
}
std::map<uint32_t, UidUse> NodeControl::Uses() const { return parts_->memberships.index().uses(); }
std::vector<LocalGroupStatus> NodeControl::Groups() const { return parts_->groups.Statuses(); }
const GroupView* NodeControl::FindGroup(GroupId group) const {
  const auto found = parts_->groups.all().find(group);
  return found == parts_->groups.all().end() ? nullptr : &found->second.view;
}
bool NodeControl::coordinator_connected() const { return parts_->link.connected(); }
Incarnation NodeControl::coordinator() const { return parts_->link.followed(); }

NodeState NodeControl::State() const {
  return {parts_->link.state(),      parts_->workers.all(),       parts_->sessions.all(),
          parts_->memberships.all(), parts_->communicators.all(), parts_->communicators.used_ids(),
          parts_->groups.all()};
}

void NodeControl::Restore(NodeState state) {
  parts_->link.Restore(state.link);
  parts_->workers.Restore(std::move(state.workers));
  parts_->sessions.Restore(std::move(state.sessions));
  parts_->memberships.Restore(std::move(state.memberships));
  parts_->communicators.Restore(std::move(state.communicators), std::move(state.used_ids));
  parts_->groups.Restore(std::move(state.groups));
  parts_->outbox.MarkChanged();
}

std::vector<std::string> NodeControl::WaitsWithoutEnd() const {
  std::vector<std::string> out = parts_->memberships.WaitsWithoutEnd();
  for (std::string& request : parts_->orders.WaitsWithoutEnd()) out.push_back(std::move(request));
  return out;
}

}  // namespace epd
