#include "daemon/node/workers/worker_codec.h"

#include <string>

#include "daemon/codec/codec.h"
#include "daemon/control/cut_off.h"
#include "daemon/tls/wire_secret.h"
#include "proto/epd/v1/limits.h"

namespace epd {

namespace {

// A base of rank 0 with a count of one byte: control refuses nothing that would fit.
constexpr size_t kMinBaseBytes = 2 + (2 + sizeof(ProgramId)) + 2;
static_assert((kMaxExecutionBases + 1) * kMinBaseBytes > limits::kDatagramBytes);

// The run of the worker that the effect is for.
Incarnation RunOf(const StartTenant& effect, const NodeId& self) {
  for (const ServingWorker& place : effect.workers) {
    if (place.node == self && place.name == effect.to) return place.worker;
  }
  return {};
}

}  // namespace

v1::ToWorker ToProto(const StartTenant& effect, const NodeId& self,
                     const std::string& cluster_secret) {
  v1::ToWorker message;
  v1::StartTenant& start = *message.mutable_start_tenant();
  start.set_group_id(effect.group.value);
  start.set_epoch(effect.epoch.value);
  start.set_formation(effect.formation.value);
  start.set_communicator_id(effect.communicator.value);
  *start.mutable_spec() = ToProto(effect.spec);
  for (const RankHolder& holder : effect.members) {
    v1::StartTenant::Member& member = *start.add_members();
    PutHolder(holder, member);
    const bool served = holder.node == self && holder.worker == effect.to;
    member.set_session_id(served ? holder.session.value : 0);
    member.set_worker(ToString(holder.worker));
    member.set_arena_index(holder.arena_index);
  }
  for (const ServingWorker& place : effect.workers) {
    v1::StartTenant::Node& node = *start.add_nodes();
    node.set_name(place.node.value);
    node.set_worker(place.worker.value);
    const bool near = place.node == self && !place.local_address.empty();
    node.set_address(near ? place.local_address : place.wire_address);
    node.set_worker_name(ToString(place.name));
    node.set_secret(SecretOfPair(WorkerSecret(cluster_secret, place.wire_secret),
                                 RunOf(effect, self), place.worker));
  }
  for (const ExecutionBase& base : effect.bases) {
    v1::StartTenant::Base& out = *start.add_bases();
    out.set_rank(base.rank.value);
    out.set_program(std::string(base.program.begin(), base.program.end()));
    out.set_base(base.base);
  }
  *start.mutable_base_cause() = ToProto(effect.base_cause);
  return message;
}

v1::ToWorker ToProto(const EndTenant& effect) {
  v1::ToWorker message;
  message.mutable_end_tenant()->set_group_id(effect.group.value);
  message.mutable_end_tenant()->set_formation(effect.formation.value);
  *message.mutable_end_tenant()->mutable_status() = ToProto(effect.status);
  return message;
}

v1::ToWorker ToProto(const DrainTenant& effect) {
  v1::ToWorker message;
  message.mutable_drain_tenant()->set_group_id(effect.group.value);
  message.mutable_drain_tenant()->set_formation(effect.formation.value);
  message.mutable_drain_tenant()->set_in_order(effect.in_order);
  return message;
}

v1::ToWorker ToProto(const MakeUniqueId& effect) {
  v1::ToWorker message;
  message.mutable_make_unique_id()->set_group_id(effect.group.value);
  message.mutable_make_unique_id()->set_epoch(effect.epoch.value);
  return message;
}

v1::ToWorker ToProto(const InitCommunicator& effect) {
  v1::ToWorker message;
  message.mutable_init_communicator()->set_group_id(effect.group.value);
  message.mutable_init_communicator()->set_epoch(effect.epoch.value);
  message.mutable_init_communicator()->set_unique_id(effect.id.bytes());
  return message;
}

}  // namespace epd
