// What epd tells the worker.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/sha256.h"
#include "daemon/packet/packet.h"
#include "daemon/worker/shell/control_codec.h"
#include "daemon/worker/shell/exec_loop.h"

namespace epd {
namespace {

// Figures per expert in one snapshot; more would not fit into a message.
constexpr size_t kMaxRoutesShown = 16384;
// Operations of the past in one message, with up to a hundred bytes each.
constexpr size_t kMaxPastShown = 2048;

}  // namespace

void ExecLoop::ReadControl() {
  while (status_.ok()) {
    absl::StatusOr<std::optional<EpdMessage>> message = epd_.Receive();
    if (!message.ok()) return Fail(message.status());
    if (!message->has_value()) return;
    Handle(**std::move(message));
    performer_.RunAll(Now());
  }
}

void ExecLoop::Handle(EpdMessage message) {
  const v1::ToWorker& body = message.body;
  switch (body.body_case()) {
    case v1::ToWorker::kAddSession:
      return Handle(body.add_session(), std::move(message.fds));
    case v1::ToWorker::kSessionDead:
      return Handle(body.session_dead());
    case v1::ToWorker::kStartTenant:
      return Handle(body.start_tenant());
    case v1::ToWorker::kEndTenant:
      return Handle(body.end_tenant());
    case v1::ToWorker::kDrainTenant:
      return exchange_.DrainTenant(GroupId(body.drain_tenant().group_id()),
                                   Formation(body.drain_tenant().formation()), Now());
    case v1::ToWorker::kMakeUniqueId:
      return Handle(body.make_unique_id());
    case v1::ToWorker::kInitCommunicator:
      return Handle(body.init_communicator());
    case v1::ToWorker::kGetSnapshot:
      return Handle(body.get_snapshot());
    case v1::ToWorker::kGetPast:
      return Handle(body.get_past());
    case v1::ToWorker::kHello:
    case v1::ToWorker::BODY_NOT_SET:
      return Fail(absl::InvalidArgumentError("epd sent a message that has no place here"));
  }
}

void ExecLoop::Send(const v1::FromWorker& message) { Fail(epd_.Send(message)); }

void ExecLoop::Handle(const v1::AddSession& message, std::vector<UniqueFd> fds) {
  if (fds.size() != 2) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("AddSession with ", fds.size(), " descriptors, expected 2")));
  }
  const SessionId id(message.session_id());
  absl::StatusOr<SessionSlots> opened =
      SessionSlots::Open(id, message.record_index(), fds[0], std::move(fds[1]), records_);
  if (!opened.ok()) return Fail(opened.status());
  SessionSlots& slots = sessions_.insert_or_assign(id, *std::move(opened)).first->second;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = id.value;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, slots.wakeup_fd(), &event) != 0) {
    return Fail(absl::ResourceExhaustedError("epoll_ctl of a session's eventfd"));
  }
  exchange_.AddSession(id);
  const absl::Time now = Now();
  slots.TakeAll([&](const Submission& submission, const shm::SlotRequest& request) {
    exchange_.Take(submission, request, now);
  });
}

void ExecLoop::Handle(const v1::SessionDead& message) {
  const SessionId id(message.session_id());
  exchange_.SessionDead(id, FromProto(message.cause()), message.process_alive(), Now());
  performer_.RunAll(Now());
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  // The client and epd hold the eventfd too, so closing it would not end the watch.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.wakeup_fd(), nullptr);
  sessions_.erase(found);
}

absl::Status ExecLoop::CheckServed(const TenantStart& start) const {
  if (absl::Status fits = epd::CheckServed(start.spec); !fits.ok()) return fits;
  return FindServing(backends_, start.spec.backend, no_cuda_).status();
}

void ExecLoop::Handle(const v1::StartTenant& message) {
  absl::StatusOr<TenantStart> start = TenantStartFromProto(message);
  absl::Status status = start.status();
  if (status.ok()) status = CheckServed(*start);
  if (status.ok()) status = performer_.AddTenant(*start, Now());
  if (status.ok()) {
    if (wire_ != nullptr) wire_->Meet(start->nodes);
    status = exchange_.StartTenant(*std::move(start), Now());
  }
  if (status.ok()) return;  // TenantReady is an effect.
  performer_.RemoveTenant(GroupId(message.group_id()), Formation(message.formation()));
  v1::FromWorker answer;
  answer.mutable_tenant_ready()->set_group_id(message.group_id());
  answer.mutable_tenant_ready()->set_formation(message.formation());
  *answer.mutable_tenant_ready()->mutable_status() = ToProto(status);
  Send(answer);
}

void ExecLoop::Handle(const v1::EndTenant& message) {
  const GroupId group(message.group_id());
  const Formation formation(message.formation());
  exchange_.EndTenant(group, formation, FromProto(message.status()), Now());
  performer_.RunAll(Now());
  performer_.RemoveTenant(group, formation);
}

void ExecLoop::Handle(const v1::MakeUniqueId& message) {
  id_maker_.Request(UniqueIdRequest{.group_id = message.group_id(), .epoch = message.epoch()},
                    Now());
}

void ExecLoop::SendMadeIds() {
  for (const MadeUniqueId& made : id_maker_.TakeMade(Now())) {
    v1::FromWorker message;
    v1::UniqueIdMade& answer = *message.mutable_unique_id_made();
    answer.set_group_id(made.request.group_id);
    answer.set_epoch(made.request.epoch);
    *answer.mutable_status() = ToProto(made.status);
    answer.set_unique_id(made.unique_id);
    Send(message);
  }
}

void ExecLoop::Handle(const v1::InitCommunicator& message) {
  v1::FromWorker reply;
  v1::CommunicatorReady& ready = *reply.mutable_communicator_ready();
  ready.set_group_id(message.group_id());
  ready.set_epoch(message.epoch());
  // Which backend moves the rows, and with whom, StartTenant says.
  absl::Status status;
  for (const std::unique_ptr<Backend>& backend : backends_) {
    if (!status.ok()) break;
    status = backend->InitCommunicator(message.group_id(), message.epoch(), message.unique_id());
  }
  if (status.ok() && !message.unique_id().empty()) {
    absl::StatusOr<std::string> digest = Sha256(message.unique_id());
    status = digest.status();
    if (digest.ok()) ready.set_unique_id_sha256(*digest);
  }
  *ready.mutable_status() = ToProto(status);
  Send(reply);
}

void ExecLoop::Handle(const v1::GetSnapshot& message) {
  v1::FromWorker reply;
  *reply.mutable_snapshot() = SnapshotToProto(exchange_.Snapshot(Now()));
  reply.mutable_snapshot()->set_request_id(message.request_id());
  if (wire_ != nullptr) {
    for (const auto& [node, traffic] : wire_->traffic().all()) {
      v1::WorkerSnapshot::NodeTraffic& shown = *reply.mutable_snapshot()->add_traffic();
      shown.set_node(node);
      shown.set_sent_bytes(traffic->sent_bytes.load(std::memory_order_relaxed));
      shown.set_received_bytes(traffic->received_bytes.load(std::memory_order_relaxed));
    }
  }
  size_t num_left = kMaxRoutesShown;
  for (v1::WorkerSnapshot::Tenant& tenant : *reply.mutable_snapshot()->mutable_tenants()) {
    const std::vector<uint64_t>* routes =
        performer_.RoutesOf(GroupId(tenant.group_id()), Formation(tenant.formation()));
    if (routes == nullptr || routes->size() > num_left) continue;
    num_left -= routes->size();
    tenant.mutable_expert_routes()->Add(routes->begin(), routes->end());
  }
  Send(reply);
}

void ExecLoop::Handle(const v1::GetPast& message) {
  v1::FromWorker reply;
  *reply.mutable_past() = PastToProto(
      exchange_.Past(GroupId(message.group_id()), message.max_operations(), kMaxPastShown, Now()));
  reply.mutable_past()->set_request_id(message.request_id());
  Send(reply);
}

}  // namespace epd
