#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/codec/codec.h"
#include "daemon/rpc/cluster/cluster_codec.h"
#include "daemon/rpc/cluster/cluster_parts.h"

namespace epd {
namespace {

void PutClaim(const Claim& claim, v1::ClusterClaim& out) {
  out.set_session_id(claim.session.value);
  out.set_request_id(claim.request.value);
  out.set_host(claim.host);
  out.set_pid(claim.pid);
  out.set_client_name(claim.client_name);
  out.set_client_version(claim.client_version);
  out.set_started(claim.started);
  *out.mutable_spec() = ToProto(claim.spec);
  for (const Rank rank : claim.ranks) out.add_ranks(rank.value);
  out.set_worker(ToString(claim.worker_of_rank(0)));
  if (claim.workers.size() > 1) {
    for (const WorkerName& worker : claim.workers) out.add_rank_workers(ToString(worker));
  }
  out.set_min_epoch(claim.min_epoch.value);
  *out.mutable_remaining() = ToProto(claim.remaining);
  out.set_proposed(claim.proposed.value);
  out.set_granted_by(claim.granted_by.value);
  out.set_group_id(claim.group.value);
  out.set_joined(claim.joined.value);
  if (claim.drained.has_value()) {
    out.set_has_drained(true);
    out.set_drained_after(claim.drained->after.value);
    Put(claim.drained->counts, *out.mutable_drained_counts());
  }
  out.set_bases_of(claim.bases_of.value);
  Put(claim.bases, *out.mutable_bases());
  out.set_fate(static_cast<v1::ClaimFate>(static_cast<int>(claim.fate) + 1));
  *out.mutable_fate_cause() = ToProto(claim.fate_cause);
}

absl::Status GetClaim(const v1::ClusterClaim& in, Claim& claim) {
  claim.session = SessionId(in.session_id());
  claim.request = RequestId(in.request_id());
  claim.host = GetText(in.host());
  claim.pid = in.pid();
  claim.client_name = GetText(in.client_name());
  claim.client_version = GetText(in.client_version());
  claim.started = in.started();
  for (const uint32_t rank : in.ranks()) claim.ranks.emplace_back(rank);
  claim.min_epoch = Epoch(in.min_epoch());
  claim.remaining = FromProto(in.remaining());
  claim.proposed = GroupId(in.proposed());
  claim.granted_by = Incarnation(in.granted_by());
  claim.group = GroupId(in.group_id());
  claim.joined = Formation(in.joined());
  claim.bases_of = Formation(in.bases_of());
  claim.fate_cause = FromProto(in.fate_cause());
  absl::Status status = Get(in.spec(), claim.spec);
  status.Update(GetEnum(in.fate(), ClaimFate::kGone, "claim.fate", claim.fate));
  status.Update(Get(in.bases(), claim.bases));
  claim.workers.resize(std::max(1, in.rank_workers_size()));
  status.Update(GetName(in.worker(), "claim.worker", claim.workers.front()));
  for (int i = 0; i < in.rank_workers_size(); ++i) {
    status.Update(
        GetName(in.rank_workers(i), "claim.rank_workers", claim.workers[static_cast<size_t>(i)]));
  }
  if (in.rank_workers_size() > 0 && in.rank_workers_size() != in.ranks_size()) {
    status.Update(absl::InvalidArgumentError(absl::StrCat(
        "claim.rank_workers: got ", in.rank_workers_size(), " of ", in.ranks_size(), " ranks")));
  }
  if (in.has_drained()) {
    claim.drained.emplace();
    claim.drained->after = Formation(in.drained_after());
    status.Update(Get(in.drained_counts(), claim.drained->counts));
  }
  return status;
}

void PutWork(const GroupWork& work, v1::ClusterWork& out) {
  out.set_group_id(work.group.value);
  out.set_fenced(work.fenced.value);
  out.set_id_epoch(work.id_epoch.value);
  *out.mutable_id_status() = ToProto(work.id_status);
  out.set_unique_id(work.id.bytes());
  out.set_init_epoch(work.init_epoch.value);
  *out.mutable_init_status() = ToProto(work.init_status);
  out.set_init_sha256(work.init_sha256);
  out.set_formation(work.formation.value);
  out.set_communicator(work.communicator.value);
  out.set_phase(static_cast<v1::TenantPhase>(static_cast<int>(work.phase) + 1));
  *out.mutable_tenant_status() = ToProto(work.tenant_status);
  out.set_broken(work.broken.value);
  *out.mutable_broken_cause() = ToProto(work.broken_cause);
  out.set_heard(work.heard.value);
  out.set_worker(ToString(work.worker));
}

absl::Status GetWork(const v1::ClusterWork& in, GroupWork& work) {
  work.group = GroupId(in.group_id());
  work.fenced = Epoch(in.fenced());
  work.id_epoch = Epoch(in.id_epoch());
  work.id_status = FromProto(in.id_status());
  std::string id;
  absl::Status status = GetBytes(in.unique_id(), kUniqueIdBytes, "work.unique_id", id);
  work.id = UniqueId(std::move(id));
  work.init_epoch = Epoch(in.init_epoch());
  work.init_status = FromProto(in.init_status());
  status.Update(GetBytes(in.init_sha256(), kDigestBytes, "work.init_sha256", work.init_sha256));
  work.formation = Formation(in.formation());
  work.communicator = GroupId(in.communicator());
  work.tenant_status = FromProto(in.tenant_status());
  work.broken = Formation(in.broken());
  work.broken_cause = FromProto(in.broken_cause());
  work.heard = Formation(in.heard());
  status.Update(GetName(in.worker(), "work.worker", work.worker));
  status.Update(GetEnum(in.phase(), TenantPhase::kDrained, "work.phase", work.phase));
  return status;
}

void PutOrder(const Order& order, v1::ClusterOrder& out) {
  out.set_request_id(order.request.value);
  out.set_kind(static_cast<v1::OrderKind>(static_cast<int>(order.kind) + 1));
  if (order.kind == OrderKind::kCreate) *out.mutable_spec() = ToProto(order.spec);
  out.set_proposed(order.proposed.value);
  out.set_group_id(order.group.value);
  out.set_name(order.name);
  *out.mutable_remaining() = ToProto(order.remaining);
  out.set_node_stops(order.node_stops);
}

absl::Status GetOrder(const v1::ClusterOrder& in, Order& order) {
  order.request = RequestId(in.request_id());
  order.proposed = GroupId(in.proposed());
  order.group = GroupId(in.group_id());
  order.name = GetText(in.name());
  order.remaining = FromProto(in.remaining());
  order.node_stops = in.node_stops();
  absl::Status status = GetEnum(in.kind(), OrderKind::kClose, "order.kind", order.kind);
  if (status.ok() && order.kind == OrderKind::kCreate) status = Get(in.spec(), order.spec);
  return status;
}

void PutFacts(const NodeFacts& facts, v1::NodeFacts& out) {
  out.set_epd_version(facts.epd_version);
  out.set_exchange(facts.exchange);
  out.set_nccl_version(facts.nccl_version);
  out.set_driver_version(facts.driver_version);
  out.set_wall_clock_ms(absl::ToUnixMillis(absl::Now()));
}

NodeFacts GetFacts(const v1::NodeFacts& in) {
  NodeFacts facts;
  facts.epd_version = GetText(in.epd_version());
  facts.exchange = in.exchange();
  facts.nccl_version = GetText(in.nccl_version());
  facts.driver_version = GetText(in.driver_version());
  if (in.wall_clock_ms() != 0)
    facts.clock_offset = absl::FromUnixMillis(in.wall_clock_ms()) - absl::Now();
  return facts;
}

void PutWorker(const WorkerReport& worker, v1::NodeReport& out) {
  if (worker.name == kCpuWorker) {
    out.set_worker(worker.incarnation.value);
    out.set_worker_has_nccl(worker.has_nccl);
    out.set_nccl_problem(worker.nccl_problem);
    out.set_wire_address(worker.wire_address);
  }
  v1::ClusterWorkerReport& added = *out.add_workers();
  added.set_name(ToString(worker.name));
  added.set_worker(worker.incarnation.value);
  added.set_has_nccl(worker.has_nccl);
  added.set_nccl_problem(worker.nccl_problem);
  added.set_nccl_version(worker.nccl_version);
  added.set_wire_address(worker.wire_address);
  added.set_local_address(worker.local_address);
  added.set_wire_secret(worker.wire_secret);
  added.set_down_because(worker.down_because);
}

absl::Status GetWorkers(const v1::NodeReport& in, std::vector<WorkerReport>& workers) {
  if (in.workers().empty()) {
    workers.push_back({kCpuWorker, Incarnation(in.worker()), in.worker_has_nccl(),
                       GetText(in.nccl_problem(), limits::kErrorBytes),
                       GetText(in.facts().nccl_version()),
                       GetText(in.wire_address(), kAddressBytes), ""});
  }
  absl::Status status;
  for (const v1::ClusterWorkerReport& worker : in.workers()) {
    workers.push_back({{},
                       Incarnation(worker.worker()),
                       worker.has_nccl(),
                       GetText(worker.nccl_problem(), limits::kErrorBytes),
                       GetText(worker.nccl_version()),
                       GetText(worker.wire_address(), kAddressBytes),
                       GetText(worker.local_address(), kAddressBytes),
                       "",
                       GetText(worker.down_because(), limits::kErrorBytes)});
    status.Update(GetBytes(worker.wire_secret(), kDigestBytes, "report.workers.wire_secret",
                           workers.back().wire_secret));
    status.Update(GetName(worker.name(), "report.workers.name", workers.back().name));
  }
  return status;
}

}  // namespace

v1::NodeReport ToProto(const NodeReport& report) {
  v1::NodeReport out;
  out.set_node(report.node.value);
  out.set_incarnation(report.incarnation.value);
  out.set_seq(report.seq);
  out.set_coordinator(report.coordinator.value);
  out.set_max_epoch(report.max_epoch.value);
  out.set_max_formation(report.max_formation.value);
  for (const WorkerReport& worker : report.workers) PutWorker(worker, out);
  PutFacts(report.facts, *out.mutable_facts());
  out.set_min_protocol(kMinClusterProtocol);
  out.set_max_protocol(kMaxClusterProtocol);
  for (const Claim& claim : report.claims) PutClaim(claim, *out.add_claims());
  for (const GroupWork& work : report.work) PutWork(work, *out.add_work());
  for (const Order& order : report.orders) PutOrder(order, *out.add_orders());
  return out;
}

absl::StatusOr<NodeReport> FromProto(const v1::NodeReport& in) {
  if (in.node().empty())
    return absl::InvalidArgumentError("report.node: got nothing, expected the node's name");
  if (GetText(in.node()) != in.node()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "report.node: got '", GetText(in.node()), "', expected at most ", limits::kNameBytes,
        " bytes without control characters; give the node another --node"));
  }
  NodeReport report;
  report.node = NodeId{in.node()};
  report.incarnation = Incarnation(in.incarnation());
  report.seq = in.seq();
  report.coordinator = Incarnation(in.coordinator());
  report.max_epoch = Epoch(in.max_epoch());
  report.max_formation = Formation(in.max_formation());
  report.facts = GetFacts(in.facts());
  absl::Status status = GetWorkers(in, report.workers);
  for (const v1::ClusterClaim& claim : in.claims())
    status.Update(GetClaim(claim, report.claims.emplace_back()));
  for (const v1::ClusterWork& work : in.work())
    status.Update(GetWork(work, report.work.emplace_back()));
  for (const v1::ClusterOrder& order : in.orders())
    status.Update(GetOrder(order, report.orders.emplace_back()));
  if (!status.ok()) return status;
  return report;
}

}  // namespace epd
