#include <string>
#include <utility>

#include "daemon/codec/codec.h"
#include "daemon/rpc/cluster/cluster_codec.h"
#include "daemon/rpc/cluster/cluster_parts.h"

namespace epd {
namespace {

void PutGroup(const GroupView& group, v1::ClusterGroup& out) {
  out.set_group_id(group.id.value);
  out.set_communicator_id(group.communicator.value);
  *out.mutable_spec() = ToProto(group.spec);
  out.set_state(static_cast<uint32_t>(group.state) + 1);
  out.set_epoch(group.epoch.value);
  out.set_formation(group.formation.value);
  out.set_served(group.served.value);
  out.set_started(group.started);
  out.set_wait(group.wait);
  *out.mutable_cause() = ToProto(group.cause);
  out.set_own_members_only(group.own_members_only);
  out.set_kept(group.kept);
  for (const RankHolder& dead : group.dead) *out.add_dead() = ToProto(dead);
  for (const RivalClaim& rival : group.rivals) {
    v1::ClusterRival& added = *out.add_rivals();
    *added.mutable_who() = ToProto(rival.who);
    added.set_waits(rival.waits);
  }
  *out.mutable_base_cause() = ToProto(group.base_cause);
  out.set_id_wanted(group.id_maker.has_value());
  if (group.id_maker.has_value()) out.set_id_maker(ToString(*group.id_maker));
  out.set_id_stays(group.id_stays);
  out.set_id_known(group.id_known);
  out.set_unique_id(group.unique_id.bytes());
  out.set_no_id_reason(group.no_id_reason);
  if (!group.node_workers.empty()) out.set_worker(ToString(group.node_workers.front()));
  for (const WorkerName& worker : group.node_workers) out.add_node_workers(ToString(worker));
}

void PutFormation(const GroupView& group, uint32_t protocol, v1::ClusterGroup& out) {
  if (protocol < 2) {
    for (const RankHolder& member : group.members) *out.add_members() = ToProto(member);
  } else if (!group.members.empty()) {
    *out.mutable_member_columns() = ToColumns(group.members.items());
  }
  Put(group.bases.items(), *out.mutable_bases());
  for (const ServingWorker& place : group.workers) {
    v1::ClusterWorker& worker = *out.add_workers();
    worker.set_node(place.node.value);
    worker.set_worker(place.worker.value);
    worker.set_wire_address(place.wire_address);
    worker.set_name(ToString(place.name));
    worker.set_local_address(place.local_address);
    worker.set_wire_secret(place.wire_secret);
  }
}

// The workers of the node that the view is for. An older epd says one.
absl::Status GetNodeWorkers(const v1::ClusterGroup& in, GroupView& group) {
  absl::Status status;
  if (in.node_workers().empty() && !in.worker().empty()) {
    status = GetName(in.worker(), "group.worker", group.node_workers.emplace_back());
  }
  for (const std::string& worker : in.node_workers()) {
    status.Update(GetName(worker, "group.node_workers", group.node_workers.emplace_back()));
  }
  if (!in.id_wanted()) return status;
  group.id_maker = group.node_workers.empty() ? kCpuWorker : group.node_workers.front();
  status.Update(GetName(in.id_maker(), "group.id_maker", *group.id_maker));
  return status;
}

// An older epd does not say who serves the ranks: each node has one worker, of one kind.
bool SaysWorkers(const v1::ClusterGroup& in) {
  return in.member_columns().workers_size() > 0 || !in.node_workers().empty();
}

absl::Status GetGroup(const v1::ClusterGroup& in, GroupView& group) {
  group.id = GroupId(in.group_id());
  group.communicator = GroupId(in.communicator_id());
  group.epoch = Epoch(in.epoch());
  group.formation = Formation(in.formation());
  group.served = Formation(in.served());
  group.started = in.started();
  group.wait = in.wait();
  group.cause = FromProto(in.cause());
  group.own_members_only = in.own_members_only();
  group.kept = in.kept();
  std::vector<RankHolder> members;
  absl::Status status = GetNodeWorkers(in, group);
  for (const v1::ClusterMember& member : in.members())
    status.Update(Get(member, members.emplace_back()));
  if (absl::Status bad = Get(in.member_columns(), members); !bad.ok()) return bad;
  if (!SaysWorkers(in) && !group.node_workers.empty()) {
    for (RankHolder& member : members) member.worker = group.node_workers.front();
  }
  group.members = std::move(members);
  for (const v1::ClusterMember& dead : in.dead())
    status.Update(Get(dead, group.dead.emplace_back()));
  for (const v1::ClusterRival& rival : in.rivals()) {
    RivalClaim& added = group.rivals.emplace_back();
    status.Update(Get(rival.who(), added.who));
    added.waits = rival.waits();
  }
  group.base_cause = FromProto(in.base_cause());
  group.id_stays = in.id_stays();
  group.id_known = in.id_known();
  std::string id;
  status.Update(GetBytes(in.unique_id(), kUniqueIdBytes, "group.unique_id", id));
  group.unique_id = UniqueId(std::move(id));
  group.no_id_reason = GetText(in.no_id_reason(), limits::kErrorBytes);
  std::vector<ServingWorker> workers;
  for (const v1::ClusterWorker& worker : in.workers()) {
    workers.push_back({NodeId{GetText(worker.node())}, Incarnation(worker.worker()),
                       GetText(worker.wire_address(), kAddressBytes), WorkerName{},
                       GetText(worker.local_address(), kAddressBytes), ""});
    status.Update(GetBytes(worker.wire_secret(), kDigestBytes, "group.workers.wire_secret",
                           workers.back().wire_secret));
    status.Update(GetName(worker.name(), "group.workers.name", workers.back().name));
  }
  group.workers = std::move(workers);
  std::vector<ExecutionBase> bases;
  status.Update(Get(in.spec(), group.spec));
  status.Update(
      GetEnum(static_cast<int>(in.state()), GroupState::kClosed, "group.state", group.state));
  status.Update(Get(in.bases(), bases));
  group.bases = std::move(bases);
  return status;
}

}  // namespace

// Fields that a parsed message does not know are sent as they are: whoever reads this finds them in
// their places.
void EncodedFormations::Put(const GroupView& group, v1::ClusterGroup& out) {
  if (group.members.empty() && group.workers.empty() && group.bases.empty()) return;
  const bool same = group.members.Shares(members_) && group.workers.Shares(workers_) &&
                    group.bases.Shares(bases_);
  if (!same) {
    members_ = group.members;
    workers_ = group.workers;
    bases_ = group.bases;
    v1::ClusterGroup encoded;
    PutFormation(group, kMaxClusterProtocol, encoded);
    fields_.Clear();
    fields_.ParseFromString(encoded.SerializeAsString());
  }
  out.GetReflection()->MutableUnknownFields(&out)->MergeFrom(fields_);
}

v1::ClusterView ToProto(const ClusterView& view, uint32_t protocol, EncodedFormations* formations) {
  v1::ClusterView out;
  out.set_coordinator(view.coordinator.value);
  out.set_seq(view.seq);
  out.set_node(view.node.value);
  out.set_node_incarnation(view.node_incarnation.value);
  out.set_report_seq(view.report_seq);
  for (const GroupView& group : view.groups) {
    PutGroup(group, *out.add_groups());
    if (formations == nullptr || protocol < 2 || !group.started) {
      PutFormation(group, protocol, *out.mutable_groups()->rbegin());
    } else {
      formations->Put(group, *out.mutable_groups()->rbegin());
    }
  }
  for (const ClaimAnswer& answer : view.claims) {
    v1::ClusterClaimAnswer& added = *out.add_claims();
    added.set_session_id(answer.session.value);
    added.set_request_id(answer.request.value);
    added.set_disposition(
        static_cast<v1::ClaimDisposition>(static_cast<int>(answer.disposition) + 1));
    added.set_group_id(answer.group.value);
    *added.mutable_status() = ToProto(answer.status);
  }
  for (const OrderAnswer& answer : view.orders) {
    v1::ClusterOrderAnswer& added = *out.add_orders();
    added.set_request_id(answer.request.value);
    *added.mutable_status() = ToProto(answer.status);
    added.set_group_id(answer.group.value);
  }
  return out;
}

absl::StatusOr<ClusterView> FromProto(const v1::ClusterView& in) {
  ClusterView view;
  view.coordinator = Incarnation(in.coordinator());
  view.seq = in.seq();
  view.node = NodeId{in.node()};
  view.node_incarnation = Incarnation(in.node_incarnation());
  view.report_seq = in.report_seq();
  absl::Status status;
  for (const v1::ClusterGroup& group : in.groups())
    status.Update(GetGroup(group, view.groups.emplace_back()));
  for (const v1::ClusterClaimAnswer& answer : in.claims()) {
    ClaimAnswer& added = view.claims.emplace_back();
    added.session = SessionId(answer.session_id());
    added.request = RequestId(answer.request_id());
    added.group = GroupId(answer.group_id());
    added.status = FromProto(answer.status());
    status.Update(GetEnum(answer.disposition(), ClaimDisposition::kFailed, "claim.disposition",
                          added.disposition));
  }
  for (const v1::ClusterOrderAnswer& answer : in.orders()) {
    view.orders.push_back(
        {RequestId(answer.request_id()), FromProto(answer.status()), GroupId(answer.group_id())});
  }
  if (!status.ok()) return status;
  return view;
}

}  // namespace epd
