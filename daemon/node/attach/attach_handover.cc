// Attached clients, and slots of ended ones, in proto/epd/v1/handover.proto.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/attach/ended_slots.h"
#include "daemon/node/handover/handover_fields.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {
namespace {

// A program that knew no other layout has written down none.
shm::SlotsLayout LayoutOf(const v1::HandoverClients::Slots& known) {
  if (known.num_slots() == 0) return {};
  return shm::SlotsLayout::For(features::kTakesManySlots, known.num_slots());
}

using SlotsOfWorkers = std::map<WorkerName, WorkerSlots>;
using SavedSlots = google::protobuf::RepeatedPtrField<v1::HandoverClients::Slots>;

void PutSlots(const SlotsOfWorkers& slots_of, OutgoingFds& fds, SavedSlots& out) {
  for (const auto& [worker, slots] : slots_of) {
    v1::HandoverClients::Slots& one = *out.Add();
    one.set_worker(ToString(worker));
    one.set_segment_fd(fds.Put(slots.segment.fd()));
    one.set_event_fd(fds.Put(slots.worker_event));
    if (slots.layout.words_apart) one.set_num_slots(slots.layout.num_slots);
  }
}

absl::Status GetSlots(const SavedSlots& in, IncomingFds& fds, SlotsOfWorkers& out) {
  for (const v1::HandoverClients::Slots& known : in) {
    const std::optional<WorkerName> worker = ParseWorkerName(known.worker());
    if (!worker.has_value()) {
      return absl::DataLossError(absl::StrCat("handover: session.slots.worker: got '",
                                              known.worker(), "', expected cpu or cuda:N"));
    }
    absl::StatusOr<WorkerSlots> slots = AdoptWorkerSlots(
        LayoutOf(known), fds.Share(known.segment_fd()), fds.Share(known.event_fd()));
    if (!slots.ok()) return slots.status();
    out.emplace(*worker, *std::move(slots));
  }
  return absl::OkStatus();
}

}  // namespace

void AttachServer::EndDeaf() {
  std::vector<SessionId> deaf;
  for (const auto& [id, session] : sessions_) {
    if (session->channel->wants_write()) deaf.push_back(id);
  }
  for (const SessionId id : deaf) {
    End(id, absl::UnavailableError(
                "the client does not read its messages, and epd is being replaced; attach again"));
  }
}

void AttachServer::Save(v1::HandoverClients& out, OutgoingFds& fds) const {
  out.set_listener_fd(fds.Put(listener_.fd()));
  for (const int fd : listener_.unattached()) out.add_unattached_fds(fds.Put(fd));
  out.set_next_session(next_session_);
  for (const auto& [id, session] : sessions_) {
    v1::HandoverClients::Session& added = *out.add_sessions();
    added.set_id(id.value);
    added.set_record_index(session->record_index);
    added.set_channel_fd(fds.Put(session->channel->fd()));
    added.set_pid(session->peer.pid);
    added.set_uid(session->peer.uid);
    added.mutable_gids()->Assign(session->peer.gids.begin(), session->peer.gids.end());
    added.set_pidfd(fds.Put(session->peer.pidfd));
    added.set_client_name(session->client_name);
    added.set_client_version(session->client_version);
    added.set_traceparent(session->traceparent);
    added.set_started(session->started);
    added.set_version(session->version);
    added.set_features(session->features);
    added.set_since(PutTime(session->since));
    added.set_has_arenas(session->has_arenas);
    PutSlots(session->slots, fds, *added.mutable_slots());
  }
  ended_.Save(out, fds);
}

absl::Status AttachServer::Restore(const v1::HandoverClients& in, IncomingFds& fds) {
  next_session_ = in.next_session();
  for (const v1::HandoverClients::Session& known : in.sessions()) {
    auto session = std::make_unique<AttachSession>();
    session->id = SessionId(known.id());
    session->record_index = known.record_index();
    session->channel = std::make_unique<PacketChannel>(fds.Take(known.channel_fd()),
                                                       AttachListener::kMaxQueuedPackets,
                                                       options_.listener.limits().queued_bytes);
    session->peer.pid = known.pid();
    session->peer.uid = known.uid();
    session->peer.gids.assign(known.gids().begin(), known.gids().end());
    session->peer.pidfd = fds.Take(known.pidfd());
    session->client_name = known.client_name();
    session->client_version = known.client_version();
    session->traceparent = known.traceparent();
    session->started = known.started();
    session->version = known.version();
    session->features = known.features();
    session->since = GetTime(known.since());
    session->has_arenas = known.has_arenas();
    absl::Status restored = GetSlots(known.slots(), fds, session->slots);
    if (restored.ok() && session->slots.count(kCpuWorker) == 0)
      restored = absl::DataLossError("handover: a session without slots; start epd anew");
    if (restored.ok()) restored = Watch(*session);
    if (!restored.ok()) return restored;
    sessions_[session->id] = std::move(session);
  }
  for (const int fd : in.unattached_fds()) listener_.Adopt(fds.Take(fd));
  if (absl::Status restored = ended_.Restore(in, fds); !restored.ok()) return restored;
  return fds.status();
}

void EndedSlots::Save(v1::HandoverClients& out, OutgoingFds& fds) const {
  for (const auto& [unused, ended] : ended_) {
    v1::HandoverClients::EndedSlots& added = *out.add_ended();
    added.set_uid(ended.uid);
    added.set_pid(ended.pid);
    added.set_until(PutTime(ended.until));
    PutSlots(ended.slots, fds, *added.mutable_slots());
  }
  for (const int pid : processes_.NotEnded()) out.add_page_processes(pid);
}

absl::Status EndedSlots::Restore(const v1::HandoverClients& in, IncomingFds& fds) {
  for (const v1::HandoverClients::EndedSlots& known : in.ended()) {
    Ended ended = {
        .uid = known.uid(), .pid = known.pid(), .slots = {}, .until = GetTime(known.until())};
    if (absl::Status got = GetSlots(known.slots(), fds, ended.slots); !got.ok()) return got;
    ended_.emplace(next_++, std::move(ended));
  }
  if (in.page_processes().empty()) return absl::OkStatus();
  Start();
  for (const int pid : in.page_processes()) processes_.AdoptEnding(pid);
  return absl::OkStatus();
}

}  // namespace epd
