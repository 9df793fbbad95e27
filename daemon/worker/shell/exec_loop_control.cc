// What epd tells the worker.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/sha256.h"
#include "daemon/packet/packet.h"
#include "daemon/worker/shell/control_codec.h"
#include "daemon/worker/shell/exec_loop.h"
#include "daemon/worker/shell/turn_budget.h"
#include "proto/epd/v1/text.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// What a snapshot leaves of its message for figures between ranks: waits are told before routes, and of a group all or none.
constexpr size_t kSnapshotSlack = 4096;
constexpr size_t kReasonBytes = 512;
// A turn of epd's messages: sessions that come and go as fast as they can make others' calls wait for no more.
constexpr int kControlMessagesOfTurn = 64;
constexpr absl::Duration kControlTimeOfTurn = absl::Milliseconds(1);

}  // namespace

// What is left stays in the socket, which epoll reports until it is empty (no EPOLLET): the loop does not sleep on it.
void ExecLoop::ReadControl() {
  TurnBudget turn(kControlMessagesOfTurn, kControlTimeOfTurn, Now());
  while (status_.ok() && turn.Takes(Now())) {
    absl::StatusOr<std::optional<EpdMessage>> message = epd_.Receive();
    if (absl::IsInvalidArgument(message.status())) {
      LeaveOut(message.status().message());
      continue;
    }
    if (!message.ok()) return Fail(message.status());
    if (!message->has_value()) return;
    EPD_FAILPOINT("worker.control.received");
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
                                   Formation(body.drain_tenant().formation()), Now(),
                                   body.drain_tenant().in_order());
    case v1::ToWorker::kMakeUniqueId:
      return Handle(body.make_unique_id());
    case v1::ToWorker::kInitCommunicator:
      return Handle(body.init_communicator());
    case v1::ToWorker::kNeighbour:
      return Handle(body.neighbour(), std::move(message.fds));
    case v1::ToWorker::kGetSnapshot:
      return Handle(body.get_snapshot());
    case v1::ToWorker::kGetPast:
      return Handle(body.get_past());
    case v1::ToWorker::kGetTrace:
      return Handle(body.get_trace());
    case v1::ToWorker::kHello:
      return LeaveOut("a message of epd's: a second hello");
    case v1::ToWorker::BODY_NOT_SET:
      return LeaveOut(
          "a message of epd's without anything that this worker knows; are epd and "
          "epd-worker of one build?");
  }
}

void ExecLoop::LeaveOut(absl::string_view what) {
  performer_.Log(LogLine{Severity::kError, absl::StrCat("left out: ", what)});
}

void ExecLoop::Send(const v1::FromWorker& message) { performer_.Send(message); }

void ExecLoop::Handle(const v1::AddSession& message, std::vector<UniqueFd> fds) {
  EPD_FAILPOINT("worker.session.add");
  const absl::Status entered = Enter(message, std::move(fds));
  if (entered.ok()) return;
  performer_.Evict(
      {SessionId(message.session_id()),
       absl::Status(entered.code(), absl::StrCat("the worker cannot serve session ",
                                                 message.session_id(), ": ", entered.message()))});
}

// The slots are client memory: a header that was written over is that client's alone.
absl::Status ExecLoop::Enter(const v1::AddSession& message, std::vector<UniqueFd> fds) {
  if (fds.size() != 2) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it came with ", fds.size(),
                     " descriptors, expected 2; the worker may have none left (LimitNOFILE)"));
  }
  const SessionId id(message.session_id());
  absl::StatusOr<SessionSlots> opened = SessionSlots::Open({.session = id,
                                                            .uid = message.uid(),
                                                            .record_index = message.record_index(),
                                                            .has_device = has_device_},
                                                           fds[0], std::move(fds[1]), records_);
  if (!opened.ok()) return opened.status();
  SessionSlots& slots = sessions_.insert_or_assign(id, *std::move(opened)).first->second;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = id.value;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, slots.wakeup_fd(), &event) != 0) {
    scan_.Remove(id);
    sessions_.erase(id);
    return absl::ResourceExhaustedError("epoll_ctl of its eventfd");
  }
  EPD_FAILPOINT("worker.session.added");
  exchange_.AddSession(id, message.uid(), slots.num_slots());
  if (!message.traceparent().empty())
    exchange_.traces().SetClientSpan(id, ParseTraceparent(message.traceparent()));
  slots.MarkArmed();
  scan_.Add(id, message.uid(), slots);
  return absl::OkStatus();
}

void ExecLoop::Handle(const v1::SessionDead& message) {
  const SessionId id(message.session_id());
  exchange_.SessionDead(id, FromProto(message.cause()), message.process_alive(), Now());
  performer_.RunAll(Now());
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  // The client and epd hold the eventfd too, so closing it would not end the watch.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.wakeup_fd(), nullptr);
  scan_.Remove(id);
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
    if (wire_ != nullptr) {
      wire_->Meet(start->nodes);
      SendStreamEnds();
    }
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
  EPD_FAILPOINT("worker.tenant.end");
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
    EPD_FAILPOINT("worker.unique_id.made");
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
  EPD_FAILPOINT("worker.communicator.init");
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

void ExecLoop::SendStreamEnds() {
  for (const NodeStreamEnd& end : wire_->TakeEnds()) {
    v1::FromWorker message;
    message.mutable_neighbour()->set_worker(end.peer.value);
    message.mutable_neighbour()->mutable_stream();
    performer_.Send(message, {end.socket.get()});
  }
}

void ExecLoop::Handle(const v1::NeighbourMessage& message, std::vector<UniqueFd> fds) {
  if (message.has_stream() && wire_ != nullptr && fds.size() == 1) {
    return wire_->Adopt(Incarnation(message.worker()), std::move(fds[0]));
  }
  absl::StatusOr<NeighbourMessage> heard = NeighbourFromProto(message, std::move(fds));
  if (!heard.ok()) return LeaveOut(heard.status().message());
  for (const std::unique_ptr<Backend>& backend : backends_) {
    if (backend->member_moves() != nullptr) return backend->member_moves()->Hear(*std::move(heard));
  }
}

// A number takes four bytes of a wait, and at most ten of a route or a count; the numbers of one rank for which others
// waited, with what says which they are, at most twenty more.
void ExecLoop::AddBetweenRanks(const ExchangeSnapshot& snapshot, v1::WorkerSnapshot& out) const {
  size_t left = limits::kDatagramBytes - kSnapshotSlack;
  left -= std::min(left, out.ByteSizeLong());
  const auto fits = [&left](size_t bytes) {
    if (bytes == 0 || bytes > left) return false;
    left -= bytes;
    return true;
  };
  for (size_t i = 0; i < snapshot.tenants.size(); ++i) {
    const std::vector<WaitCounts>& waits = snapshot.tenants[i].waits;
    if (snapshot.tenants[i].ended || !fits(waits.size() * (20 + 10 * kNumWaitBuckets))) continue;
    v1::RankFigures& ranks = *out.mutable_tenants(static_cast<int>(i))->mutable_ranks();
    for (const WaitCounts& one : waits) {
      v1::RankFigures::Waits& told = *ranks.add_waits();
      told.set_seconds(static_cast<double>(one.sum_ns) * 1e-9);
      told.mutable_counts()->Add(one.counts.begin(), one.counts.end());
    }
  }
  for (size_t i = 0; i < snapshot.tenants.size(); ++i) {
    const std::vector<int64_t>& waited = snapshot.tenants[i].waited_ns;
    if (snapshot.tenants[i].ended || !fits(waited.size() * 4)) continue;
    v1::RankFigures& ranks = *out.mutable_tenants(static_cast<int>(i))->mutable_ranks();
    for (const int64_t nanos : waited)
      ranks.add_waited_seconds(static_cast<float>(static_cast<double>(nanos) * 1e-9));
  }
  for (v1::WorkerSnapshot::Tenant& tenant : *out.mutable_tenants()) {
    const Routes* routes =
        performer_.RoutesOf(GroupId(tenant.group_id()), Formation(tenant.formation()));
    if (routes == nullptr || tenant.ended() || !fits(routes->between_ranks.size() * 10)) continue;
    tenant.mutable_ranks()->mutable_routes()->Add(routes->between_ranks.begin(),
                                                  routes->between_ranks.end());
  }
}

void ExecLoop::Handle(const v1::GetSnapshot& message) {
  EPD_FAILPOINT("worker.snapshot");
  performer_.TakeDirect(Now());
  const ExchangeSnapshot figures = exchange_.Snapshot(Now());
  v1::WorkerSnapshot snapshot = SnapshotToProto(figures);
  snapshot.set_request_id(message.request_id());
  if (wire_ != nullptr) {
    for (const auto& [node, traffic] : wire_->traffic().all()) {
      v1::WorkerSnapshot::NodeTraffic& shown = *snapshot.add_traffic();
      shown.set_node(node);
      shown.set_sent_bytes(traffic->sent_bytes.load(std::memory_order_relaxed));
      shown.set_received_bytes(traffic->received_bytes.load(std::memory_order_relaxed));
      shown.set_queued_messages(traffic->queued_messages.load(std::memory_order_relaxed));
      shown.set_queued_rows(traffic->queued_rows.load(std::memory_order_relaxed));
    }
  }
  size_t num_left = kMaxRoutesShown;
  for (v1::WorkerSnapshot::Tenant& tenant : *snapshot.mutable_tenants()) {
    RowLink link = performer_.LinkOf(GroupId(tenant.group_id()), Formation(tenant.formation()));
    tenant.set_link(std::move(link.name));
    tenant.set_link_reason(text::Clean(link.why, kReasonBytes));
    const Routes* routes =
        performer_.RoutesOf(GroupId(tenant.group_id()), Formation(tenant.formation()));
    if (routes == nullptr) continue;
    if (routes->padded_rows > 0 && !tenant.ended())
      tenant.mutable_ranks()->set_padded_rows(routes->padded_rows);
    if (routes->num_estimated > 0 && !tenant.ended())
      tenant.mutable_ranks()->set_estimated_prepares(routes->num_estimated);
    if (routes->of_expert.size() > num_left) continue;
    num_left -= routes->of_expert.size();
    tenant.mutable_expert_routes()->Add(routes->of_expert.begin(), routes->of_expert.end());
  }
  AddBetweenRanks(figures, snapshot);
  for (const v1::FromWorker& part : SplitSnapshot(std::move(snapshot))) Send(part);
}

void ExecLoop::Handle(const v1::GetPast& message) {
  performer_.TakeDirect(Now());
  v1::FromWorker reply;
  *reply.mutable_past() = PastToProto(
      exchange_.Past(GroupId(message.group_id()), message.max_operations(), kMaxPastShown, Now()));
  reply.mutable_past()->set_request_id(message.request_id());
  Send(reply);
}

void ExecLoop::Handle(const v1::GetTrace& message) {
  OperationTraces& traces = exchange_.traces();
  exchange_.KeepTraces(Now() + FromProto(message.keep_for()));
  performer_.TakeDirect(Now());
  std::vector<GroupId> groups;
  for (const uint64_t group : message.group_ids()) groups.emplace_back(group);
  OperationTraces::Page page = traces.Read(groups, message.after(), kMaxTracesShown);
  if (message.open()) {
    for (const RankTrace& open : traces.ReadOpen(groups, kMaxOpenShown)) page.ranks.push_back(open);
  }
  for (RankTrace& rank : page.ranks) {
    for (absl::Time& at : rank.at) at = time_.ToClock(at);
  }
  v1::FromWorker reply;
  reply.mutable_trace()->set_request_id(message.request_id());
  *reply.mutable_trace()->mutable_page() = TraceToProto(page);
  Send(reply);
}

}  // namespace epd
