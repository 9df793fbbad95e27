// Workers, and what epd keeps of each, in proto/epd/v1/handover.proto.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/codec/codec.h"
#include "daemon/node/handover/handover_fields.h"
#include "daemon/node/workers/worker_table.h"
#include "daemon/observe/log.h"
#include "proto/epd/v1/handover.pb.h"

namespace epd {
namespace {

void Put(const GroupTotals::Counts& counts, v1::HandoverWorker::Counts& out) {
  out.set_num_operations(counts.num_operations);
  out.set_num_failed(counts.num_failed);
  out.set_num_failed_calls(counts.num_failed_calls);
  out.set_bytes_moved(counts.bytes_moved);
  out.mutable_expert_routes()->Assign(counts.expert_routes.begin(), counts.expert_routes.end());
}

GroupTotals::Counts Get(const v1::HandoverWorker::Counts& in) {
  return {.num_operations = in.num_operations(),
          .num_failed = in.num_failed(),
          .num_failed_calls = in.num_failed_calls(),
          .bytes_moved = in.bytes_moved(),
          .expert_routes = {in.expert_routes().begin(), in.expert_routes().end()}};
}

}  // namespace

void GroupTotals::Save(v1::HandoverWorker& out) const {
  out.set_totals_run(run_.value);
  out.set_num_snapshots(num_snapshots_);
  for (const auto& [id, group] : groups_) {
    v1::HandoverWorker::GroupTotal& added = *out.add_totals();
    added.set_group_id(id.value);
    added.set_heard(group.heard);
    Put(group.total, *added.mutable_total());
    for (const auto& [formation, counts] : group.told) {
      v1::HandoverWorker::Counts& told = *added.add_told();
      told.set_formation(formation.value);
      Put(counts, told);
    }
  }
}

void GroupTotals::Restore(const v1::HandoverWorker& in) {
  run_ = Incarnation(in.totals_run());
  num_snapshots_ = in.num_snapshots();
  for (const v1::HandoverWorker::GroupTotal& known : in.totals()) {
    Group& group = groups_[GroupId(known.group_id())];
    group.heard = known.heard();
    group.total = Get(known.total());
    for (const v1::HandoverWorker::Counts& told : known.told())
      group.told[Formation(told.formation())] = Get(told);
  }
}

void PendingArenas::Save(v1::HandoverWorker& out, OutgoingFds& fds) const {
  for (const auto& [id, entry] : groups_) {
    v1::HandoverWorker::Arenas& added = *out.add_arenas();
    added.set_group_id(id.value);
    added.set_formation(entry.formation.value);
    added.set_stream_region_offset(entry.stream_region_offset);
    added.set_stream_region_bytes(entry.stream_region_bytes);
    for (const auto& [rank, arena] : entry.arenas) {
      v1::HandoverWorker::Arena& one = *added.add_arenas();
      *one.mutable_made() = arena.made;
      one.set_read_write_fd(fds.Put(arena.read_write));
      one.set_read_only_fd(fds.Put(arena.read_only));
    }
    for (const SessionId session : entry.served) added.add_served(session.value);
  }
}

void PendingArenas::Restore(const v1::HandoverWorker& in, IncomingFds& fds) {
  for (const v1::HandoverWorker::Arenas& known : in.arenas()) {
    Entry& entry = groups_[GroupId(known.group_id())];
    entry.formation = Formation(known.formation());
    entry.stream_region_offset = known.stream_region_offset();
    entry.stream_region_bytes = known.stream_region_bytes();
    for (const v1::HandoverWorker::Arena& one : known.arenas()) {
      entry.arenas[Rank(one.made().rank())] = {one.made(), fds.Share(one.read_write_fd()),
                                               fds.Share(one.read_only_fd())};
    }
    for (const uint64_t session : known.served()) entry.served.emplace(session);
  }
}

void DirectGates::Save(v1::HandoverWorker& out, OutgoingFds& fds) const {
  for (const auto& [id, pages] : groups_) {
    v1::HandoverWorker::Gates& added = *out.add_gates();
    added.set_group_id(id.value);
    for (const Page& page : pages) {
      v1::HandoverWorker::Gate& gate = *added.add_gates();
      gate.set_fd(fds.Put(page.fd));
      gate.set_offset(page.offset);
    }
  }
}

absl::Status DirectGates::Restore(const v1::HandoverWorker& in, IncomingFds& fds) {
  for (const v1::HandoverWorker::Gates& known : in.gates()) {
    Pages& pages = groups_[GroupId(known.group_id())];
    for (const v1::HandoverWorker::Gate& gate : known.gates()) {
      const absl::Status mapped = Map(fds.Take(gate.fd()), gate.offset(), pages);
      if (!mapped.ok()) {
        return absl::ResourceExhaustedError(
            absl::StrCat("handover: mapping a gate: ", mapped.message()));
      }
    }
  }
  return absl::OkStatus();
}

void WorkerGateway::Save(v1::HandoverWorker& out, OutgoingFds& fds) const {
  out.set_ends_because(ends_because_);
  *out.mutable_down_because() = ToProto(down_because_);
  for (const auto& [key, process] : lingering_) {
    v1::HandoverWorker::Lingering& added = *out.add_lingering();
    added.set_pid(key.first);
    added.set_session_id(key.second.value);
    added.set_pidfd(fds.Put(process.pidfd));
    for (const auto& [id, cause] : process.sessions) {
      v1::HandoverWorker::EndedSession& ended = *added.add_sessions();
      ended.set_session_id(id.value);
      *ended.mutable_cause() = ToProto(cause);
    }
  }
}

void WorkerGateway::Restore(const v1::HandoverWorker& in, IncomingFds& fds) {
  ends_because_ = in.ends_because();
  down_because_ = FromProto(in.down_because());
  for (const v1::HandoverWorker::Lingering& known : in.lingering()) {
    const LingeringKey key{known.pid(), SessionId(known.session_id())};
    Lingering& process = lingering_[key];
    process.pidfd = fds.Take(known.pidfd());
    for (const v1::HandoverWorker::EndedSession& ended : known.sessions())
      process.sessions[SessionId(ended.session_id())] = FromProto(ended.cause());
    WatchLingering(key.first, key.second);
  }
}

void WorkerSupervisor::Save(v1::HandoverWorker::Process& out, OutgoingFds& fds) const {
  out.set_state(static_cast<uint32_t>(figures_.state) + 1);
  out.set_pid(figures_.pid);
  out.set_incarnation(figures_.worker_incarnation);
  out.set_num_restarts(figures_.num_restarts);
  for (const auto& [cause, num] : figures_.restarts) {
    v1::HandoverWorker::Restarts& added = *out.add_restarts();
    added.set_cause(cause);
    added.set_num(num);
  }
  out.set_since(PutTime(figures_.since));
  out.set_last_exit(figures_.last_exit);
  *out.mutable_ready() = figures_.ready;
  *out.mutable_snapshot() = figures_.snapshot;
  out.set_snapshot_at(PutTime(figures_.snapshot_at));
  out.set_asked_at(PutTime(figures_.asked_at));
  out.set_silent(figures_.silent);
  *out.mutable_said() = said_;
  out.set_killed_because(killed_because_);
  out.set_started_at(PutTime(started_at_));
  out.set_next_start(PutTime(next_start_));
  out.set_next_heartbeat(PutTime(next_heartbeat_));
  out.set_deaf_since(PutTime(deaf_since_));
  out.set_next_request(next_request_);
  if (child_.has_value()) out.set_pidfd(fds.Put(child_->pidfd));
  if (channel_.has_value()) out.set_channel_fd(fds.Put(channel_->fd()));
}

absl::Status WorkerSupervisor::Restore(const v1::HandoverWorker::Process& in, IncomingFds& fds) {
  if (in.state() < 1 || in.state() > static_cast<uint32_t>(State::kStopped) + 1) {
    return absl::DataLossError(
        absl::StrCat("handover: worker.state: got ", in.state(), ", expected 1 to 4"));
  }
  figures_.state = static_cast<State>(in.state() - 1);
  figures_.pid = in.pid();
  figures_.worker_incarnation = in.incarnation();
  figures_.num_restarts = in.num_restarts();
  for (const v1::HandoverWorker::Restarts& known : in.restarts())
    figures_.restarts[known.cause()] = known.num();
  figures_.since = GetTime(in.since());
  figures_.last_exit = in.last_exit();
  figures_.ready = in.ready();
  figures_.snapshot = in.snapshot();
  figures_.snapshot_at = GetTime(in.snapshot_at());
  figures_.asked_at = GetTime(in.asked_at());
  figures_.silent = in.silent();
  said_ = in.said();
  killed_because_ = in.killed_because();
  started_at_ = GetTime(in.started_at());
  next_start_ = GetTime(in.next_start());
  next_heartbeat_ = GetTime(in.next_heartbeat());
  deaf_since_ = GetTime(in.deaf_since());
  next_request_ = in.next_request();
  if (in.pidfd() == 0) return absl::OkStatus();
  child_.emplace(Child{in.pid(), fds.Take(in.pidfd())});
  if (in.channel_fd() != 0) channel_.emplace(MakeChannel(fds.Take(in.channel_fd())));
  return WatchChild();
}

absl::Status WorkerTable::CanSave() const {
  for (const auto& [name, entry] : entries_) {
    if (entry->supervisor.CanSave()) continue;
    return absl::UnavailableError(absl::StrCat(
        "the worker ", ToString(name), " (pid ", entry->supervisor.figures().pid,
        ") does not read what epd has sent to it; try again when it runs, see epctl status"));
  }
  return absl::OkStatus();
}

void WorkerTable::Save(v1::Handover& out, OutgoingFds& fds) const {
  for (const auto& [name, entry] : entries_) {
    v1::HandoverWorker& added = *out.add_workers();
    added.set_name(ToString(name));
    added.set_records_fd(fds.Put(entry->records.fd()));
    added.set_slots_per_session(Records(entry->records).num_slots());
    entry->arenas.Save(added, fds);
    entry->gates.Save(added, fds);
    entry->totals.Save(added);
    entry->gateway.Save(added, fds);
    entry->supervisor.Save(*added.mutable_process(), fds);
  }
}

absl::Status WorkerTable::Restore(const v1::Handover& in, IncomingFds& fds) {
  for (const v1::HandoverWorker& known : in.workers()) {
    const std::optional<WorkerName> name = ParseWorkerName(known.name());
    if (!name.has_value()) {
      return absl::DataLossError(
          absl::StrCat("handover: worker.name: got '", known.name(), "', expected cpu or cuda:N"));
    }
    const uint32_t num_slots =
        known.slots_per_session() == 0 ? shm::kSlotsPerSession : known.slots_per_session();
    absl::StatusOr<SharedSegment> records = AdoptRecords(fds.Share(known.records_fd()), num_slots);
    if (!records.ok()) return records.status();
    if (num_slots < parts_.num_slots) {
      Log(LogLevel::kWarn,
          "a worker goes on with fewer op slots than slots_per_session until epd is restarted",
          {{"worker", known.name()},
           {"slots", num_slots},
           {"slots_per_session", parts_.num_slots}});
    }
    WorkerEntry& entry = Enter(*name, *std::move(records));
    entry.arenas.Restore(known, fds);
    absl::Status restored = entry.gates.Restore(known, fds);
    entry.totals.Restore(known);
    entry.gateway.Restore(known, fds);
    restored.Update(entry.supervisor.Restore(known.process(), fds));
    if (!restored.ok()) return restored;
  }
  return absl::OkStatus();
}

}  // namespace epd
