#include "daemon/node/worker_seats.h"

#include <algorithm>
#include <utility>

namespace epd {

absl::Status WorkerSeats::Add(const WorkerName& name) {
  if (seats_.count(name) > 0) return absl::OkStatus();
  absl::StatusOr<SharedSegment> records = CreateRecords();
  if (!records.ok()) return records.status();
  WorkerGateway::Options said = parts_.gateway;
  said.name = name;
  auto seat = std::make_unique<WorkerSeat>(*std::move(records), std::move(said),
                                           parts_.options(name), parts_.sink, parts_.loop);
  seat->gateway.SetPeers(&seat->supervisor, server_);
  seats_.emplace(name, std::move(seat));
  parts_.sink(WorkerAdded{name});
  return absl::OkStatus();
}

WorkerSeat* WorkerSeats::Find(const WorkerName& name) const {
  const auto seat = seats_.find(name);
  return seat == seats_.end() ? nullptr : seat->second.get();
}

void WorkerSeats::Send(const WorkerName& to, const v1::ToWorker& message) {
  if (WorkerSeat* seat = Find(to); seat != nullptr) seat->supervisor.Send(message);
}

void WorkerSeats::EndSession(const AttachSession& session, const absl::Status& cause,
                             bool process_alive) {
  for (const auto& [name, seat] : seats_) seat->gateway.EndSession(session, cause, process_alive);
}

void WorkerSeats::Tick(absl::Time now) {
  for (const auto& [name, seat] : seats_) {
    seat->supervisor.Tick(now);
    seat->gateway.Sweep(now);
  }
}

absl::Time WorkerSeats::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, seat] : seats_) {
    next = std::min({next, seat->supervisor.NextDeadline(), seat->gateway.NextSweep()});
  }
  return next;
}

void WorkerSeats::Stop(absl::Time deadline) {
  // All begin to end before the first is waited for.
  for (const auto& [name, seat] : seats_) seat->supervisor.HangUp();
  for (const auto& [name, seat] : seats_) seat->supervisor.Stop(deadline);
}

}  // namespace epd
