#include "daemon/node/workers/worker_table.h"

#include <algorithm>
#include <utility>

namespace epd {

absl::Status WorkerTable::Add(const WorkerName& name) {
  if (entries_.count(name) > 0) return absl::OkStatus();
  absl::StatusOr<SharedSegment> records = CreateRecords(parts_.num_slots);
  if (!records.ok()) return records.status();
  Enter(name, *std::move(records));
  parts_.sink(WorkerAdded{name});
  return absl::OkStatus();
}

WorkerEntry& WorkerTable::Enter(const WorkerName& name, SharedSegment records) {
  WorkerGateway::Options gateway = parts_.gateway;
  gateway.name = name;
  gateway.pass_on = [this](Incarnation to, const v1::ToWorker& message, std::vector<UniqueFd> fds) {
    PassOn(to, message, std::move(fds));
  };
  auto entry = std::make_unique<WorkerEntry>(std::move(records), std::move(gateway),
                                             parts_.options(name), parts_.sink, parts_.loop);
  entry->gateway.SetPeers(&entry->supervisor, server_);
  return *(entries_[name] = std::move(entry));
}

WorkerEntry* WorkerTable::Find(const WorkerName& name) const {
  const auto entry = entries_.find(name);
  return entry == entries_.end() ? nullptr : entry->second.get();
}

uint32_t WorkerTable::NumSlots(const WorkerName& name) const {
  const WorkerEntry* entry = Find(name);
  if (entry == nullptr) return parts_.num_slots;
  return std::min(parts_.num_slots, Records(entry->records).num_slots());
}

void WorkerTable::Send(const WorkerName& to, const v1::ToWorker& message) {
  if (WorkerEntry* entry = Find(to); entry != nullptr) entry->supervisor.Send(message);
}

void WorkerTable::PassOn(Incarnation to, const v1::ToWorker& message, std::vector<UniqueFd> fds) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& known) {
    return known.second->supervisor.figures().worker_incarnation == to.value;
  });
  if (found == entries_.end()) return;  // It has ended meanwhile.
  PacketChannel::Fds shared;
  for (UniqueFd& fd : fds) shared.push_back(std::make_shared<UniqueFd>(std::move(fd)));
  found->second->supervisor.Send(message, std::move(shared));
}

void WorkerTable::EndSession(const AttachSession& session, const absl::Status& cause,
                             bool process_alive) {
  for (const auto& [name, entry] : entries_)
    entry->gateway.EndSession(session, cause, process_alive);
}

void WorkerTable::AskForFigures(absl::Time now) {
  for (const auto& [name, entry] : entries_) entry->supervisor.AskForSnapshot(now);
}

bool WorkerTable::OweFigures(absl::Time since, absl::Duration patience) const {
  for (const auto& [name, entry] : entries_) {
    const WorkerSupervisor::Figures& figures = entry->supervisor.figures();
    if (!entry->supervisor.running() || since > figures.asked_at + patience) continue;
    if (figures.snapshot_at < since) return true;
  }
  return false;
}

bool WorkerTable::Tick(absl::Time now) {
  bool changed = false;
  for (const auto& [name, entry] : entries_) {
    entry->gateway.Sweep(now);
    if (!entry->gateway.ends_calls()) changed |= entry->supervisor.Tick(now);
  }
  return changed;
}

absl::Time WorkerTable::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, entry] : entries_) {
    next = std::min({next, entry->supervisor.NextDeadline(), entry->gateway.NextSweep()});
  }
  return next;
}

void WorkerTable::Stop(absl::Time deadline) {
  // All begin to end before the first is waited for.
  for (const auto& [name, entry] : entries_) entry->supervisor.HangUp();
  for (const auto& [name, entry] : entries_) entry->supervisor.Stop(deadline);
}

}  // namespace epd
