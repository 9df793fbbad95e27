// Private to node_*.cc. How it works: every event changes the records, then Reconcile() compares
// each group's view with what the worker and the sessions have been told and tells them the
// difference; at the end the report goes out if it has changed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/node_control.h"
#include "daemon/control/used_ids.h"

namespace epd {

class NodeControl::Impl {
 public:
  explicit Impl(const NodeOptions& options) : options_(options) {
    for (const WorkerName& name : options.workers) workers_[name].name = name;
  }

  Effects Handle(absl::Time now, const NodeEvent& event);
  absl::Time NextDeadline() const;
  std::vector<SessionStatus> Sessions() const;
  std::vector<MembershipStatus> Memberships() const;
  std::vector<LocalGroupStatus> Groups() const;
  std::vector<WorkerStatus> Workers() const;
  bool coordinator_connected() const { return connected_; }
  Incarnation coordinator() const { return followed_; }
  bool shutting_down() const { return shutdown_deadline_.has_value(); }
  std::vector<std::string> WaitsWithoutEnd() const;

 private:
  using MemberKey = std::pair<SessionId, RequestId>;

  // A Join from its request until the coordinator has seen its release.
  struct Membership {
    Claim claim;
    MembershipState state = MembershipState::kWaiting;
    absl::Time since;
    absl::Time
        deadline;  // Of the Join, or of a re-formation that the session was told to wait for.
    absl::Status waits_for;
    Formation drained_of;       // The formation that the session named in its last Drained.
    bool told_to_wait = false;  // In the last NotifyReform.
    uint64_t released_seq = 0;  // First report that says so.
  };

  // What a worker of this node does for a tenant.
  struct LocalTenant {
    GroupWork work;
    bool running = false;  // The worker has the tenant of work.formation.
    bool drain_asked = false;
  };

  struct LocalGroup {
    GroupView view;          // With what a coordinator that repeats nothing has said before.
    Incarnation heard_from;  // The coordinator that has told members, bases and workers.
    absl::Time since;
    std::map<WorkerName, LocalTenant> tenants;  // Of the workers that serve it here.
    Formation ended;  // All formations up to it are over on this node, whatever the view says.
  };

  // A worker of this node in a communicator.
  struct LocalMember {
    GroupWork work;
    Epoch id_asked;    // MakeUniqueId was sent for it.
    Epoch init_asked;  // InitCommunicator was sent for it.
  };

  // What the tenants of a group share on this node; lives as long as one of them is known.
  struct LocalCommunicator {
    std::map<WorkerName, LocalMember> members;
    Epoch epoch;            // The highest that a tenant of it is in.
    bool id_stays = false;  // In `epoch`.
    Epoch id_checked;       // Whether its id may be used is `id_is_fresh`.
    bool id_is_fresh = false;
    std::string no_id_reason;
  };

  struct LocalOrder {
    Order order;
    absl::Time deadline;
    bool internal = false;  // Made by a shutdown; nobody is told.
  };

  // ---- node_sessions.cc ----
  void On(const SessionAttached& event);
  void On(const SessionGone& event);
  void On(const JoinRequested& event);
  void On(const LeaveRequested& event);
  void On(const SessionDrained& event);
  absl::Status CheckJoin(const JoinRequested& event) const;
  // The only writer of a membership's state.
  void Fire(Membership& member, MembershipEvent event);
  void Release(Membership& member, MembershipEvent event, const absl::Status& cause);
  // Ends a member's part with an error: answers its Join or tells it that the group has ended.
  void FailMember(Membership& member, const absl::Status& status);
  std::string Describe(const Membership& member, const std::string& phase) const;

  // ---- node_worker.cc ----
  void On(const WorkerAdded& event);
  void On(const WorkerStarted& event);
  void On(const WorkerDied& event);
  void On(const TenantReady& event);
  void On(const TenantFailed& event);
  void On(const TenantBroken& event);
  void On(const TenantDrained& event);
  void On(const UniqueIdMade& event);
  void On(const CommunicatorInitialised& event);
  bool IsUp(const WorkerName& name) const;
  void ForgetWork(const WorkerName& dead);
  // The running tenant, or the communicator's member, that an answer is about; null: it is out of date.
  LocalTenant* Answering(Incarnation worker, GroupId group, Formation formation);
  LocalMember* AnsweringFor(Incarnation worker, GroupId communicator);
  bool IsRun(const WorkerName& name, Incarnation worker) const;
  // On all workers of this node.
  void EndLocalTenants(LocalGroup& group, const absl::Status& status);
  bool IsReady(const LocalGroup& group, Formation formation) const;

  // ---- node_view.cc ----
  void On(const CoordinatorConnected& event);
  void On(const ViewReceived& event);
  void On(const CoordinatorLost& event);
  void TakeGroups(const ClusterView& view);
  void TakeWorkers();
  // That serve the group here, as the coordinator says, or, if it does not know, its members.
  std::set<WorkerName> WorkersOf(const GroupView& view);
  void TakeView(Incarnation coordinator, const GroupView& theirs, LocalGroup& group);
  void TakeClaimAnswers(const ClusterView& view);
  void Reconcile();
  void ReconcileWorker(LocalGroup& group);
  void Initialise(const GroupView& view, const UniqueId& id, const WorkerName& name,
                  LocalCommunicator& communicator);
  const UniqueId& IdOf(const GroupView& view, const LocalCommunicator& communicator) const;
  void ForgetCommunicators();
  void EndUnwanted(LocalGroup& group);
  void ReconcileTenant(LocalGroup& group);
  void ReconcileMembers(LocalGroup& group);
  bool LocalMembersLive(const LocalGroup& group) const;
  void TellReform(Membership& member, const absl::Status& cause, bool wait);
  void TellJoined(Membership& member, const LocalGroup& group);
  void AutoDrain(Membership& member, Formation ended);
  // The formation that sessions and worker should be in; zero: none.
  Formation Wanted(const LocalGroup& group) const;
  std::vector<Membership*> MembersOf(GroupId group);

  // ---- node_orders.cc ----
  void On(const CreateRequested& event);
  void On(const DrainRequested& event);
  void On(const CloseRequested& event);
  void On(const ShutdownRequested& event);
  void On(const Tick& event);
  void TakeOrderAnswers(const ClusterView& view);
  void AddOrder(Order order, absl::Time deadline, bool internal);
  void Expire();
  void AdvanceShutdown();
  void Report();
  void ReportWork(NodeReport& report) const;

  template <typename E>
  void Emit(E effect) {
    effects_.push_back(std::move(effect));
  }

  NodeOptions options_;
  absl::Time now_ = absl::InfinitePast();
  std::map<SessionId, SessionStatus> sessions_;
  std::map<MemberKey, Membership> members_;
  std::map<GroupId, LocalGroup> groups_;
  std::map<GroupId, LocalCommunicator> communicators_;
  std::map<RequestId, LocalOrder> orders_;
  std::map<WorkerName, WorkerStatus> workers_;
  // The coordinator.
  bool connected_ = false;
  Incarnation followed_;
  Incarnation reported_to_;  // The last one that has taken a report of this node.
  uint64_t last_view_seq_ = 0;
  Epoch max_epoch_;
  Formation max_formation_;
  UsedIds used_ids_;
  uint64_t report_seq_ = 0;
  absl::Time next_report_ = absl::InfiniteFuture();
  bool dirty_ = false;
  // Shutdown.
  std::optional<absl::Time> shutdown_deadline_;
  bool shutdown_done_ = false;
  uint64_t next_internal_request_ = uint64_t{1} << 63;
  Effects effects_;
};

}  // namespace epd
