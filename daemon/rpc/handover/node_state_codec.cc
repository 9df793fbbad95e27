#include "daemon/rpc/handover/node_state_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/codec/codec.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/rpc/cluster/cluster_codec.h"
#include "daemon/rpc/cluster/cluster_parts.h"

namespace epd {
namespace {

// Neither report nor view may be without a node's name.
constexpr char kSelf[] = "self";

absl::Status CheckLength(const char* field, int got, size_t expected) {
  if (got == static_cast<int>(expected)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("handover: control.", field, ": got ", got, ", expected ", expected));
}

void PutSession(const AttachedSession& session, v1::HandoverControl::Session& out) {
  out.set_id(session.client.session.value);
  out.set_pid(session.client.pid);
  out.set_uid(session.client.uid);
  out.set_host(session.client.host);
  out.set_name(session.client.name);
  out.set_version(session.client.version);
  out.set_started(session.client.started);
  out.set_state(static_cast<uint32_t>(session.state) + 1);
}

absl::Status GetSession(const v1::HandoverControl::Session& in, NodeState& state) {
  AttachedSession& session = state.sessions[SessionId(in.id())];
  session.client = {SessionId(in.id()), in.pid(),     in.uid(),    in.host(),
                    in.name(),          in.version(), in.started()};
  return GetEnum(static_cast<int>(in.state()), SessionState::kGone, "session.state", session.state);
}

void PutMembership(const SessionMembership& member, v1::HandoverControl::Membership& out) {
  out.set_uid(member.uid);
  out.set_state(static_cast<uint32_t>(member.state) + 1);
  out.set_deadline(PutTime(member.deadline));
  *out.mutable_waits_for() = ToProto(member.waits_for);
  out.set_drained_of(member.drained_of.value);
  out.set_told_to_wait(member.told_to_wait);
  out.set_released_seq(member.released_seq);
}

absl::Status GetMembership(const v1::HandoverControl::Membership& in, Claim claim,
                           NodeState& state) {
  SessionMembership& member = state.memberships[{claim.session, claim.request}];
  member.claim = std::move(claim);
  member.uid = in.uid();
  member.deadline = GetTime(in.deadline());
  member.waits_for = FromProto(in.waits_for());
  member.drained_of = Formation(in.drained_of());
  member.told_to_wait = in.told_to_wait();
  member.released_seq = in.released_seq();
  return GetEnum(static_cast<int>(in.state()), MembershipState::kReleased, "membership.state",
                 member.state);
}

void PutGroup(const LocalGroup& group, v1::HandoverControl::Group& out, NodeReport& report) {
  out.set_heard_from(group.heard_from.value);
  out.set_since(PutTime(group.since));
  out.set_ended(group.ended.value);
  out.set_served(group.served.value);
  *out.mutable_first_cause() = ToProto(group.first_cause);
  out.set_cause_of(group.cause_of.value);
  out.set_troubled(group.troubled.value);
  *out.mutable_trouble() = ToProto(group.trouble);
  for (const auto& [name, tenant] : group.tenants) {
    v1::HandoverControl::Tenant& added = *out.add_tenants();
    added.set_worker(ToString(name));
    added.set_running(tenant.running);
    added.set_drain_asked(tenant.drain_asked);
    report.work.push_back(tenant.work);
  }
}

// Hands out what is in a report's list of work, from the first on.
class WorkList {
 public:
  explicit WorkList(std::vector<GroupWork> work) : work_(std::move(work)) {}
  // DATA_LOSS: there are fewer.
  absl::Status Next(GroupWork& out) {
    if (next_ == work_.size())
      return CheckLength("report.work", static_cast<int>(next_), next_ + 1);
    out = std::move(work_[next_++]);
    return absl::OkStatus();
  }
  absl::Status CheckEmpty() const {
    return CheckLength("report.work", static_cast<int>(work_.size()), next_);
  }

 private:
  std::vector<GroupWork> work_;
  size_t next_ = 0;
};

absl::Status GetGroup(const v1::HandoverControl::Group& in, GroupView view, WorkList& work,
                      NodeState& state) {
  LocalGroup& group = state.groups[view.id];
  group.view = std::move(view);
  group.heard_from = Incarnation(in.heard_from());
  group.since = GetTime(in.since());
  group.ended = Formation(in.ended());
  group.served = Formation(in.served());
  group.first_cause = FromProto(in.first_cause());
  group.cause_of = Formation(in.cause_of());
  if (!group.cause_of && !group.first_cause.ok()) group.cause_of = group.served;  // An older one.
  group.troubled = Formation(in.troubled());
  group.trouble = FromProto(in.trouble());
  if (group.troubled && group.trouble.ok()) group.trouble = group.first_cause;  // Likewise.
  absl::Status status;
  for (const v1::HandoverControl::Tenant& known : in.tenants()) {
    WorkerName name;
    status.Update(GetName(known.worker(), "tenant.worker", name));
    LocalTenant& tenant = group.tenants[name];
    tenant.running = known.running();
    tenant.drain_asked = known.drain_asked();
    status.Update(work.Next(tenant.work));
  }
  return status;
}

void PutCommunicator(GroupId id, const LocalCommunicator& communicator,
                     v1::HandoverControl::Communicator& out, NodeReport& report) {
  out.set_id(id.value);
  out.set_id_stays(communicator.id_stays);
  out.set_id_checked(communicator.id_checked.value);
  out.set_id_is_fresh(communicator.id_is_fresh);
  out.set_no_id_reason(communicator.no_id_reason);
  for (const auto& [name, member] : communicator.members) {
    v1::HandoverControl::Member& added = *out.add_members();
    added.set_worker(ToString(name));
    added.set_id_asked(member.id_asked.value);
    added.set_init_asked(member.init_asked.value);
    report.work.push_back(member.work);
  }
}

absl::Status GetCommunicator(const v1::HandoverControl::Communicator& in, WorkList& work,
                             NodeState& state) {
  LocalCommunicator& communicator = state.communicators[GroupId(in.id())];
  communicator.id_stays = in.id_stays();
  communicator.id_checked = Epoch(in.id_checked());
  communicator.id_is_fresh = in.id_is_fresh();
  communicator.no_id_reason = in.no_id_reason();
  absl::Status status;
  for (const v1::HandoverControl::Member& known : in.members()) {
    WorkerName name;
    status.Update(GetName(known.worker(), "communicator.worker", name));
    LocalCommunicator::Member& member = communicator.members[name];
    member.id_asked = Epoch(known.id_asked());
    member.init_asked = Epoch(known.init_asked());
    status.Update(work.Next(member.work));
  }
  return status;
}

absl::Status CheckLengths(const v1::HandoverControl& in, const NodeReport& report,
                          const ClusterView& view) {
  absl::Status status = CheckLength("worker_is_up", in.worker_is_up_size(), report.workers.size());
  status.Update(CheckLength("memberships", in.memberships_size(), report.claims.size()));
  status.Update(CheckLength("groups", in.groups_size(), view.groups.size()));
  return status;
}

// What a peer of the cluster would have got wrong is lost here.
absl::Status Lost(const absl::Status& status) {
  if (status.ok() || absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat("handover: ", status.message()));
}

}  // namespace

v1::HandoverControl ToProto(const NodeState& state) {
  v1::HandoverControl out;
  NodeReport report;
  report.node = NodeId{kSelf};
  report.seq = state.link.report_seq;
  report.coordinator = state.link.reported_to;
  report.max_epoch = state.link.max_epoch;
  report.max_formation = state.link.max_formation;
  out.set_followed(state.link.followed.value);
  out.set_last_view_seq(state.link.last_view_seq);
  for (const auto& [name, worker] : state.workers) {
    report.workers.push_back(worker.report);
    out.add_worker_is_up(worker.state == WorkerState::kUp);
  }
  for (const auto& [id, session] : state.sessions) PutSession(session, *out.add_sessions());
  for (const auto& [key, member] : state.memberships) {
    report.claims.push_back(member.claim);
    PutMembership(member, *out.add_memberships());
  }
  ClusterView view;
  view.node = NodeId{kSelf};
  for (const auto& [id, group] : state.groups) {
    view.groups.push_back(group.view);
    PutGroup(group, *out.add_groups(), report);
  }
  for (const auto& [id, communicator] : state.communicators)
    PutCommunicator(id, communicator, *out.add_communicators(), report);
  for (const size_t digest : state.used_ids.digests()) out.add_used_ids(digest);
  *out.mutable_report() = ToProto(report);
  *out.mutable_view() = ToProto(view, kMaxClusterProtocol);
  return out;
}

absl::StatusOr<NodeState> FromProto(const v1::HandoverControl& in) {
  absl::StatusOr<NodeReport> report = FromProto(in.report());
  if (!report.ok()) return Lost(report.status());
  absl::StatusOr<ClusterView> view = FromProto(in.view());
  if (!view.ok()) return Lost(view.status());
  // Of an empty list of workers the codec makes one, for epds of before.
  if (in.report().workers().empty()) report->workers.clear();
  if (absl::Status bad = CheckLengths(in, *report, *view); !bad.ok()) return bad;
  NodeState state;
  state.link = {Incarnation(in.followed()), report->coordinator,   in.last_view_seq(),
                report->max_epoch,          report->max_formation, report->seq};
  absl::Status status;
  for (int i = 0; i < in.worker_is_up_size(); ++i) {
    const WorkerReport& worker = report->workers[static_cast<size_t>(i)];
    state.workers[worker.name] = {worker,
                                  in.worker_is_up(i) ? WorkerState::kUp : WorkerState::kDown};
  }
  for (const v1::HandoverControl::Session& session : in.sessions())
    status.Update(GetSession(session, state));
  for (int i = 0; i < in.memberships_size(); ++i) {
    status.Update(
        GetMembership(in.memberships(i), std::move(report->claims[static_cast<size_t>(i)]), state));
  }
  WorkList work(std::move(report->work));
  for (int i = 0; i < in.groups_size(); ++i) {
    status.Update(
        GetGroup(in.groups(i), std::move(view->groups[static_cast<size_t>(i)]), work, state));
  }
  for (const v1::HandoverControl::Communicator& communicator : in.communicators())
    status.Update(GetCommunicator(communicator, work, state));
  status.Update(work.CheckEmpty());
  for (const uint64_t digest : in.used_ids()) state.used_ids.Mark(digest);
  if (!status.ok()) return Lost(status);
  return state;
}

}  // namespace epd
