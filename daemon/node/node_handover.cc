// A node's parts in proto/epd/v1/handover.proto.
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/codec/codec.h"
#include "daemon/control/node_state.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/node/node.h"

namespace epd {
namespace {

void SaveHistory(const GroupHistory& history, v1::Handover& out) {
  for (const auto& [what, num] : history.counts()) {
    v1::Handover::TransitionCount& count = *out.add_transitions();
    count.set_event(static_cast<uint32_t>(what.first));
    count.set_to(static_cast<uint32_t>(what.second));
    count.set_num(num);
  }
  for (const GroupHistory::Entry& entry : history.newest()) {
    v1::HandoverTransition& added = *out.add_newest();
    added.set_at(PutTime(entry.at));
    added.set_group_id(entry.transition.group.value);
    added.set_name(entry.transition.name);
    added.set_epoch(entry.transition.epoch.value);
    added.set_formation(entry.transition.formation.value);
    added.set_from(static_cast<uint32_t>(entry.transition.from));
    added.set_to(static_cast<uint32_t>(entry.transition.to));
    *added.mutable_why() = ToProto(entry.transition.why);
    added.set_event(static_cast<uint32_t>(entry.transition.event));
  }
}

// kCount is a value, too: "none".
bool IsState(uint32_t number) { return number <= static_cast<uint32_t>(GroupState::kCount); }
bool IsEvent(uint32_t number) { return number <= static_cast<uint32_t>(GroupEvent::kCount); }

// Leaves out what this program has no word for.
void RestoreHistory(const v1::Handover& in, GroupHistory& history) {
  GroupHistory::Counts counts;
  for (const v1::Handover::TransitionCount& count : in.transitions()) {
    if (!IsEvent(count.event()) || !IsState(count.to())) continue;
    counts[{static_cast<GroupEvent>(count.event()), static_cast<GroupState>(count.to())}] =
        count.num();
  }
  std::deque<GroupHistory::Entry> newest;
  for (const v1::HandoverTransition& known : in.newest()) {
    if (!IsEvent(known.event()) || !IsState(known.from()) || !IsState(known.to())) continue;
    newest.push_back({GetTime(known.at()),
                      {GroupId(known.group_id()), known.name(), Epoch(known.epoch()),
                       Formation(known.formation()), static_cast<GroupState>(known.from()),
                       static_cast<GroupState>(known.to()), FromProto(known.why()),
                       static_cast<GroupEvent>(known.event())}});
  }
  history.Restore(std::move(counts), std::move(newest));
}

void SaveOrders(const RequestDeduplicator& requests, v1::Handover& out) {
  for (const RequestDeduplicator::Finished& one : requests.finished()) {
    v1::HandoverOrder& order = *out.add_orders();
    order.set_request_id(one.request.value);
    order.set_key(one.key);
    *order.mutable_status() = ToProto(one.answer.status);
    order.set_group_id(one.answer.group.value);
  }
  out.set_next_order(requests.next());
}

void RestoreOrders(const v1::Handover& in, RequestDeduplicator& requests) {
  std::vector<RequestDeduplicator::Finished> finished;
  for (const v1::HandoverOrder& order : in.orders()) {
    finished.push_back({RequestId(order.request_id()),
                        order.key(),
                        {FromProto(order.status()), GroupId(order.group_id())}});
  }
  requests.Restore(finished, in.next_order());
}

void SaveCoordinator(const Coordination& coordination, const NodeId& self, v1::Handover& out) {
  if (!coordination.is_here()) return;
  const Rendezvous& own = coordination.rendezvous();
  out.set_max_epoch(own.max_epoch().value);
  for (const PersistentGroup& made : own.Persistent()) {
    v1::Handover::PersistentGroup& added = *out.add_persistent();
    added.set_id(made.id.value);
    *added.mutable_spec() = ToProto(made.spec);
  }
  for (const NodeStatus& node : own.Nodes()) {
    if (!node.lost && node.node != self) out.add_nodes(node.node.value);
  }
}

absl::StatusOr<Leading> GetLeading(const v1::Handover& in) {
  Leading how;
  how.floor = Epoch(in.max_epoch());
  for (const std::string& node : in.nodes()) how.expected.insert(NodeId{node});
  for (const v1::Handover::PersistentGroup& made : in.persistent()) {
    absl::StatusOr<GroupSpec> spec = FromProto(made.spec(), SpecDefaults());
    if (!spec.ok()) {
      return absl::DataLossError(absl::StrCat("handover: persistent: ", spec.status().message()));
    }
    how.persistent.push_back({GroupId(made.id()), *std::move(spec)});
  }
  return how;
}

}  // namespace

void Node::Save(v1::Handover& out, OutgoingFds& fds) {
  role_.AssertHeld();
  clients_.EndDeaf();
  clients_.EndProcesses();
  queue_.Drain();
  out.set_incarnation(identity_.incarnation);
  out.set_started(PutTime(identity_.started));
  out.set_wire_secret(identity_.wire_secret);
  out.set_num_replacements(identity_.num_replacements + 1);
  for (const auto& copy : certificates_.copies()) out.add_certificate_fds(fds.Put(copy));
  clients_.Save(*out.mutable_clients(), fds);
  client_gateway_.Save(*out.mutable_clients());
  workers_.Save(out, fds);
  SaveCoordinator(coordination_, id(), out);
  SaveHistory(effects_.history(), out);
  SaveOrders(requests_, out);
}

absl::Status Node::Restore(const v1::Handover& in, NodeState control, IncomingFds& fds) {
  role_.AssertHeld();
  absl::StatusOr<Leading> leading = GetLeading(in);
  if (!leading.ok()) return leading.status();
  absl::Status restored = workers_.Restore(in, fds);
  if (restored.ok()) restored = clients_.Restore(in.clients(), fds);
  restored.Update(fds.status());
  if (!restored.ok()) return restored;
  client_gateway_.Restore(in.clients());
  RestoreHistory(in, effects_.history());
  RestoreOrders(in, requests_);
  coordination_.Continue(*leading);
  queue_.Restore(std::move(control));
  return absl::OkStatus();
}

}  // namespace epd
