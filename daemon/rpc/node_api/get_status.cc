#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "daemon/codec/codec.h"
#include "daemon/rpc/node_api/group_facts.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "daemon/rpc/node_api/node_health.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

v1::WorkerState ToProto(WorkerSupervisor::State state) {
  return static_cast<v1::WorkerState>(static_cast<int>(state) + 1);
}
static_assert(static_cast<int>(WorkerSupervisor::State::kStarting) + 1 ==
              v1::WORKER_STATE_STARTING);
static_assert(static_cast<int>(WorkerSupervisor::State::kStopped) + 1 == v1::WORKER_STATE_STOPPED);

void FillWorker(const WorkerEntry& entry, v1::Worker& out) {
  const WorkerSupervisor::Figures& figures = entry.supervisor.figures();
  out.set_device(ToString(entry.name));
  if (entry.name.on_gpu()) FillGpu(entry, *out.mutable_gpu());
  out.set_state(ToProto(figures.state));
  out.set_pid(figures.pid);
  out.set_worker_incarnation(figures.worker_incarnation);
  out.set_num_restarts(figures.num_restarts);
  out.set_backend(figures.ready.backend());
  out.set_simd(figures.ready.simd());
  out.set_last_exit(figures.last_exit);
  if (figures.pid != 0) *out.mutable_up() = epd::ToProto(MonotonicNow() - figures.since);
}

// Adds up what all workers moved.
void FillTraffic(const Node& node, v1::GetStatusResponse& out) {
  std::map<std::string, v1::NodeTraffic> by_node;
  for (const auto& [name, entry] : node.workers()) {
    for (const auto& one : entry->supervisor.figures().snapshot.traffic()) {
      v1::NodeTraffic& sum = by_node[one.node()];
      sum.set_node(one.node());
      sum.set_sent_bytes(sum.sent_bytes() + one.sent_bytes());
      sum.set_received_bytes(sum.received_bytes() + one.received_bytes());
      sum.set_queued_messages(sum.queued_messages() + one.queued_messages());
      sum.set_queued_rows(sum.queued_rows() + one.queued_rows());
    }
  }
  for (auto& [name, sum] : by_node) *out.add_traffic() = std::move(sum);
}

void FillCertificate(const Node& node, v1::GetStatusResponse& out) {
  if (!node.certificates().served().enabled()) return;
  const CertificateState state = node.certificates().state();
  v1::Certificate& certificate = *out.mutable_certificate();
  *certificate.mutable_left() = epd::ToProto(state.validity.ends - absl::Now());
  certificate.set_problem(CertificateProblem(state, absl::Now()));
}

void FillLease(const Node& node, v1::GetStatusResponse& out) {
  const std::optional<StoreLease> lease = node.coordination().store_lease();
  if (!lease.has_value()) return;
  out.mutable_lease()->set_holder(lease->holder);
  out.mutable_lease()->set_term(lease->term);
  const absl::Duration left = lease->until - ClockNow();
  *out.mutable_lease()->mutable_left() = epd::ToProto(std::max(left, absl::ZeroDuration()));
}

}  // namespace

void FillGpu(const WorkerEntry& entry, v1::Gpu& out) {
  const WorkerSupervisor::Figures& figures = entry.supervisor.figures();
  out.set_ordinal(entry.name.cuda_device);
  out.set_problem(figures.ready.cuda_problem());
  if (!figures.ready.has_cuda()) return;
  const v1::WorkerReady::Device& device = figures.ready.cuda();
  out.set_name(device.name());
  out.set_uuid(absl::BytesToHexString(device.uuid()));
  out.set_memory_bytes(device.bytes());
  out.set_staging_bytes(device.staging_bytes());
  out.set_sharing(device.sharing());
  out.set_client_memory_fraction(device.client_memory_fraction());
}

absl::Status Fill(const Node& node, const v1::GetStatusRequest&, v1::GetStatusResponse& out) {
  const NodeHealth health = JudgeHealth(node);
  out.set_node(node.id().value);
  out.set_version(node.identity().version);
  out.set_incarnation(node.control().options().incarnation.value);
  out.set_pid(getpid());
  *out.mutable_up() = epd::ToProto(MonotonicNow() - node.identity().started);
  out.set_health(health.health);
  for (const std::string& problem : health.problems) out.add_problems(problem);
  for (const auto& [name, entry] : node.workers()) FillWorker(*entry, *out.add_workers());
  for (const GroupStatus& group : KnownGroups(node)) {
    out.set_num_groups(out.num_groups() + 1);
    if (group.state == GroupState::kReady) out.set_num_ready_groups(out.num_ready_groups() + 1);
  }
  if (out.workers_size() > 1) *out.mutable_gpu() = out.workers(1).gpu();
  out.set_num_sessions(static_cast<uint32_t>(node.clients().sessions().size()));
  const v1::WorkerSnapshot& snapshot = node.worker().figures().snapshot;
  out.set_pool_bytes(node.settings().staging_bytes);
  out.set_pool_committed_bytes(snapshot.pool_committed_bytes());
  out.set_pool_peak_bytes(snapshot.pool_peak_bytes());
  FillTraffic(node, out);
  FillCertificate(node, out);
  FillLease(node, out);
  out.set_coordinator(node.coordination().leader());
  out.set_coordinator_connected(node.control().coordinator_connected());
  out.set_coordinates(node.coordination().is_here());
  out.set_draining(node.stopping());
  out.set_num_replacements(node.identity().num_replacements);
  out.set_worker_snapshot_stale(FiguresAreStale(node));
  out.set_min_protocol_version(limits::kMinProtocolVersion);
  out.set_max_protocol_version(limits::kProtocolVersion);
  return absl::OkStatus();
}

}  // namespace epd
