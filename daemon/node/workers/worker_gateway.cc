#include "daemon/node/workers/worker_gateway.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/codec/codec.h"
#include "daemon/observe/log.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

// Short against the second within which every rank has to know, long against the cost of a sweep.
constexpr absl::Duration kSweepEvery = absl::Milliseconds(20);

// Each costs a descriptor.
constexpr size_t kMaxLingering = 1024;

}  // namespace

WorkerGateway::WorkerGateway(Options options, EventSink sink, EventLoop& loop, Kept kept)
    : options_(std::move(options)),
      sink_(std::move(sink)),
      loop_(loop),
      records_(kept.records),
      arenas_(kept.arenas),
      gates_(kept.gates),
      totals_(kept.totals) {}

void WorkerGateway::SetPeers(WorkerSupervisor* supervisor, AttachServer* server) {
  supervisor_ = supervisor;
  server_ = server;
}

const WorkerSlots* WorkerGateway::FindSlots(const AttachSession& session) const {
  const auto slots = session.slots.find(options_.name);
  return slots == session.slots.end() ? nullptr : &slots->second;
}

void WorkerGateway::SendAddSession(const AttachSession& session) {
  const auto slots = session.slots.find(options_.name);
  if (slots == session.slots.end()) return;
  v1::ToWorker message;
  v1::AddSession& add = *message.mutable_add_session();
  add.set_session_id(session.id.value);
  add.set_record_index(session.record_index);
  add.set_host(options_.host);
  add.set_pid(session.peer.pid);
  add.set_client_name(session.client_name);
  add.set_uid(session.peer.uid);
  add.set_traceparent(session.traceparent);
  supervisor_->Send(message, {slots->second.segment.fd(), slots->second.worker_event});
}

void WorkerGateway::AddSession(const AttachSession& session) {
  ClearRecordsOf(records_, session.record_index);
  SendAddSession(session);
}

void WorkerGateway::EndSession(const AttachSession& session, const absl::Status& cause,
                               bool process_alive) {
  const WorkerSlots* slots = FindSlots(session);
  if (slots == nullptr) return;
  EPD_FAILPOINT("epd.session.end");
  MarkEnded(slots->view());
  // Nobody will see the end of a process that epd cannot see. The pages of its arenas on this node go back
  // all the same; the memory of a GPU would not, while it is mapped.
  if (!session.peer.pidfd.valid()) process_alive = options_.name.on_gpu();
  if (process_alive) WatchProcess(session, cause);
  SendSessionDead(session.id, cause, process_alive);
}

void WorkerGateway::SendSessionDead(SessionId session, const absl::Status& cause,
                                    bool process_alive) {
  v1::ToWorker message;
  v1::SessionDead& dead = *message.mutable_session_dead();
  dead.set_session_id(session.value);
  *dead.mutable_cause() = ToProto(cause);
  dead.set_process_alive(process_alive);
  supervisor_->Send(message);
}

// Tells the worker a second time once the process is gone, so that the arenas are charged no
// longer. When there is no descriptor left for that, they stay charged until the worker is
// replaced.
void WorkerGateway::WatchProcess(const AttachSession& session, const absl::Status& cause) {
  if (!session.peer.pidfd.valid() || !session.has_arenas) return;
  // Processes of other namespaces all have pid 0.
  const pid_t pid = session.peer.pid;
  const LingeringKey key{pid, pid == 0 ? session.id : SessionId()};
  if (pid == 0 && lingering_.size() >= kMaxLingering) return;
  Lingering& process = lingering_[key];
  process.sessions[session.id] = cause;
  if (process.pidfd.valid()) return;
  process.pidfd.reset(fcntl(session.peer.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  WatchLingering(key.first, key.second);
}

void WorkerGateway::WatchLingering(pid_t pid, SessionId session) {
  const LingeringKey key{pid, session};
  const Lingering& process = lingering_.at(key);
  const auto on_exit = [this, key](uint32_t) {
    const Lingering ended = std::move(lingering_.at(key));
    lingering_.erase(key);
    loop_.Remove(ended.pidfd.get());
    for (const auto& [id, why] : ended.sessions) SendSessionDead(id, why, /*process_alive=*/false);
  };
  if (!process.pidfd.valid() || !loop_.Add(process.pidfd.get(), EPOLLIN, on_exit).ok()) {
    lingering_.erase(key);
  }
}

void WorkerGateway::OnWorkerSpawned() {
  for (const auto& [id, session] : server_->sessions()) SendAddSession(*session);
}

void WorkerGateway::OnWorkerReady(uint64_t incarnation, const v1::WorkerReady& ready) {
  const bool has_nccl = !ready.nccl_version().empty();
  if (!ready.wire_problem().empty()) {
    Log(LogLevel::kError, "the worker takes no streams of other nodes",
        {{"worker", ToString(options_.name)}, {"why", ready.wire_problem()}});
  }
  sink_(WorkerStarted{{options_.name, Incarnation(incarnation), has_nccl, ready.nccl_problem(),
                       ready.nccl_version(), ready.wire_address(), ready.local_address(),
                       options_.wire_secret}});
}

void WorkerGateway::OnWorkerDead(uint64_t incarnation, bool was_ready, const absl::Status& cause) {
  arenas_.Clear();
  for (const auto& [key, process] : lingering_) loop_.Remove(process.pidfd.get());
  lingering_.clear();
  absl::Status why = cause;
  if (!ends_because_.empty()) {
    why = absl::Status(cause.code(),
                       absl::StrCat(cause.message(), " (it said: ", ends_because_, ")"));
    ends_because_.clear();
  }
  down_because_ = WorkerGone(absl::StrCat("the worker of node ", options_.node, " ",
                                          ToString(options_.name), " host=", options_.host),
                             why.message());
  EPD_FAILPOINT("epd.worker.dead");
  gates_.EndAll();
  FailUndecided(Records(records_), down_because_);
  // The next Sweep, after control has heard of it: Reform goes out before the calls end, so that a
  // client which calls again waits for the new epoch instead of failing anew.
  next_sweep_ = absl::InfinitePast();
  pass_.BeginAnew();
  ends_calls_ = true;
  sink_(WorkerDied{was_ready ? Incarnation(incarnation) : Incarnation(), why, options_.name});
}

void WorkerGateway::OnWorkerHeldUp(uint32_t uid) {
  server_->Refuse(uid, absl::StrCat("uid=", uid, " has kept the worker of node ", options_.node,
                                    " ", ToString(options_.name),
                                    " from answering: it waits in the kernel for memory of that "
                                    "user, as where he makes holes in it"));
}

absl::Status WorkerGateway::PoisonCause(const shm::SlotRequest& request) const {
  return absl::UnavailableError(absl::StrCat(
      "[epd:UNAVAILABLE] ", options_.describe_group(GroupId(request.group_id)),
      " rank=", request.rank, " phase=", PhaseName(request.step), ": ", down_because_.message()));
}

void WorkerGateway::Sweep(absl::Time now) {
  if (supervisor_->running() || now < next_sweep_) return;
  EPD_FAILPOINT("epd.worker.sweep");
  std::vector<PoisonTarget> targets;
  for (const auto& [id, session] : server_->sessions()) {
    const WorkerSlots* slots = FindSlots(*session);
    if (slots != nullptr) targets.push_back({id, slots->view(), session->record_index});
  }
  Poisoned poisoned;
  const bool over = pass_.Turn(
      targets, Records(records_),
      [this](const shm::SlotRequest& request) { return PoisonCause(request); }, poisoned);
  for (const auto& [group, num_calls] : poisoned.failed_calls)
    totals_.AddFailedCalls(GroupId(group), num_calls);
  num_ended_ += poisoned.num_ended;
  next_sweep_ = over ? now + kSweepEvery : now;
  if (!over) return;
  ends_calls_ = false;
  const uint64_t ended = std::exchange(num_ended_, 0);
  if (ended > 0)
    Log(LogLevel::kWarn, "open operations ended for the worker",
        {{"worker", ToString(options_.name)},
         {"submissions", ended},
         {"why", down_because_.message()}});
}

absl::Time WorkerGateway::NextSweep() const {
  if (supervisor_->running()) return absl::InfiniteFuture();
  for (const auto& [id, session] : server_->sessions()) {
    if (FindSlots(*session) != nullptr) return next_sweep_;
  }
  return absl::InfiniteFuture();
}

void WorkerGateway::OnTenantReady(Incarnation worker, const v1::TenantReady& ready,
                                  std::vector<UniqueFd> fds) {
  const GroupId group(ready.group_id());
  const Formation formation(ready.formation());
  absl::Status status = FromProto(ready.status());
  EPD_FAILPOINT("epd.tenant.ready");
  if (status.ok()) status = gates_.Put(ready, fds);
  if (status.ok()) status = arenas_.Put(ready, std::move(fds));
  if (status.ok()) return sink_(TenantReady{worker, group, formation});
  sink_(TenantFailed{worker, group, formation, status});
}

void WorkerGateway::OnWorkerMessage(uint64_t incarnation, const v1::FromWorker& message,
                                    std::vector<UniqueFd> fds) {
  const Incarnation worker(incarnation);
  switch (message.body_case()) {
    case v1::FromWorker::kTenantReady:
      return OnTenantReady(worker, message.tenant_ready(), std::move(fds));
    case v1::FromWorker::kTenantBroken: {
      const v1::TenantBroken& broken = message.tenant_broken();
      return sink_(TenantBroken{worker, GroupId(broken.group_id()), Formation(broken.formation()),
                                FromProto(broken.cause())});
    }
    case v1::FromWorker::kTenantDrained:
      return sink_(TenantDrained{worker, GroupId(message.tenant_drained().group_id()),
                                 Formation(message.tenant_drained().formation())});
    case v1::FromWorker::kUniqueIdMade: {
      const v1::UniqueIdMade& made = message.unique_id_made();
      return sink_(UniqueIdMade{worker, GroupId(made.group_id()), Epoch(made.epoch()),
                                FromProto(made.status()), UniqueId(made.unique_id())});
    }
    case v1::FromWorker::kCommunicatorReady: {
      const v1::CommunicatorReady& ready = message.communicator_ready();
      return sink_(CommunicatorInitialised{worker, GroupId(ready.group_id()), Epoch(ready.epoch()),
                                           FromProto(ready.status()), ready.unique_id_sha256()});
    }
    case v1::FromWorker::kLog: {
      const int severity = message.log().severity();
      const LogLevel level = severity <= 0   ? LogLevel::kInfo
                             : severity == 1 ? LogLevel::kWarn
                                             : LogLevel::kError;
      return Log(level, "worker says",
                 {{"worker", ToString(options_.name)}, {"text", message.log().text()}});
    }
    case v1::FromWorker::kEvictSession: {
      const v1::EvictSession& evict = message.evict_session();
      return server_->End(SessionId(evict.session_id()), FromProto(evict.cause()));
    }
    case v1::FromWorker::kEnds:
      ends_because_ = message.ends().cause().message();
      return Log(LogLevel::kError, "worker ends by itself",
                 {{"worker", ToString(options_.name)}, {"why", ends_because_}});
    case v1::FromWorker::kNeighbour: {
      // To whom it goes is read before from whom is written there.
      v1::ToWorker passed;
      *passed.mutable_neighbour() = message.neighbour();
      passed.mutable_neighbour()->set_worker(incarnation);
      return options_.pass_on(Incarnation(message.neighbour().worker()), passed, std::move(fds));
    }
    case v1::FromWorker::kPast:
      return options_.on_past(message.past());
    case v1::FromWorker::kTrace:
      return options_.on_trace(message.trace());
    case v1::FromWorker::kSnapshot:  // The supervisor keeps the rest.
      return totals_.Take(worker, message.snapshot());
    case v1::FromWorker::kReady:  // A second one: of no consequence.
    case v1::FromWorker::BODY_NOT_SET:
      return;
  }
}

}  // namespace epd
