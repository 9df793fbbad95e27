// Attached clients in proto/epd/v1/handover.proto.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/node/attach/attach_server.h"
#include "daemon/node/handover/handover_fields.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {
namespace {

// A program that knew no other layout has written down none.
shm::SlotsLayout LayoutOf(const v1::HandoverClients::Slots& known) {
  if (known.num_slots() == 0) return {};
  return shm::SlotsLayout::For(features::kTakesManySlots, known.num_slots());
}

absl::Status GetSlots(const v1::HandoverClients::Session& in, IncomingFds& fds,
                      AttachSession& session) {
  for (const v1::HandoverClients::Slots& known : in.slots()) {
    const std::optional<WorkerName> worker = ParseWorkerName(known.worker());
    if (!worker.has_value()) {
      return absl::DataLossError(absl::StrCat("handover: session.slots.worker: got '",
                                              known.worker(), "', expected cpu or cuda:N"));
    }
    absl::StatusOr<WorkerSlots> slots = AdoptWorkerSlots(
        LayoutOf(known), fds.Share(known.segment_fd()), fds.Share(known.event_fd()));
    if (!slots.ok()) return slots.status();
    session.slots.emplace(*worker, *std::move(slots));
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
    added.set_version(session->version);
    added.set_features(session->features);
    added.set_since(PutTime(session->since));
    added.set_has_arenas(session->has_arenas);
    for (const auto& [worker, slots] : session->slots) {
      v1::HandoverClients::Slots& one = *added.add_slots();
      one.set_worker(ToString(worker));
      one.set_segment_fd(fds.Put(slots.segment.fd()));
      one.set_event_fd(fds.Put(slots.worker_event));
      if (slots.layout.words_apart) one.set_num_slots(slots.layout.num_slots);
    }
  }
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
    session->version = known.version();
    session->features = known.features();
    session->since = GetTime(known.since());
    session->has_arenas = known.has_arenas();
    absl::Status restored = GetSlots(known, fds, *session);
    if (restored.ok() && session->slots.count(kCpuWorker) == 0)
      restored = absl::DataLossError("handover: a session without slots; start epd anew");
    if (restored.ok()) restored = Watch(*session);
    if (!restored.ok()) return restored;
    sessions_[session->id] = std::move(session);
  }
  for (const int fd : in.unattached_fds()) listener_.Adopt(fds.Take(fd));
  return fds.status();
}

}  // namespace epd
