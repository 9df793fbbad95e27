#include "daemon/node/attach/ended_slots.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "daemon/observe/user_log.h"

namespace epd {
namespace {

// Of processes that have something to give back: then they are left to themselves.
constexpr absl::Duration kEndLimit = absl::Milliseconds(100);

}  // namespace

EndedSlots::~EndedSlots() {
  if (started_) loop_.Remove(processes_.ready_fd());
}

void EndedSlots::Add(const PeerCredentials& peer, std::map<WorkerName, WorkerSlots> slots,
                     absl::Time until) {
  ended_.emplace(next_++, Ended{peer.uid, peer.pid, std::move(slots), until});
}

bool EndedSlots::Start() {
  if (started_ || !processes_.Start().ok()) return started_;
  const auto on_ready = [this](uint32_t) { TakeDone(MonotonicNow()); };
  return started_ = loop_.Add(processes_.ready_fd(), EPOLLIN, on_ready).ok();
}

void EndedSlots::Tick(absl::Time now) {
  if (!ended_.empty()) Start();
  for (auto it = ended_.begin(); it != ended_.end();) {
    const auto ended = it++;
    if (!ended->second.going && ended->second.until <= now)
      GiveBack(ended->first, ended->second, now);
  }
  processes_.Tick(now);
  TakeDone(now);
}

void EndedSlots::GiveBack(uint64_t id, Ended& ended, absl::Time now) {
  PageProcesses::Task task = {.id = id, .action = PageAction::kGiveBack};
  for (const auto& [worker, slots] : ended.slots) {
    if (!slots.layout.words_apart) continue;  // Answers stay; few slots, and of old clients.
    const shm::Area area = slots.layout.slots();
    task.pages.push_back({.fd = slots.segment.fd()->get(),
                          .offset = area.offset,
                          .bytes = slots.segment.bytes() - area.offset});
  }
  ended.going = true;
  processes_.Add(ended.uid, std::move(task), now);
}

void EndedSlots::TakeDone(absl::Time now) {
  for (const PageProcesses::Done& done : processes_.TakeDone(now)) ended_.erase(done.id);
  for (const PageProcesses::Warning& warning : processes_.TakeWarnings())
    LogOfUser(warning.uid, LogLevel::kWarn, "pages", {{"why", warning.text}});
}

absl::Time EndedSlots::NextDeadline() const {
  absl::Time next = processes_.next_deadline();
  for (const auto& [unused, ended] : ended_) {
    if (!ended.going) next = std::min(next, ended.until);
  }
  return next;
}

void EndedSlots::AddUse(uid_t uid, UidUse& use) const {
  for (const auto& [unused, ended] : ended_) {
    if (ended.uid != uid) continue;
    for (UidShare* sum : {&use.all, &use.of_pid[ended.pid]}) sum->slots += NumSlots(ended.slots);
  }
}

void EndedSlots::EndProcesses() {
  processes_.End(kEndLimit);
  for (auto& [unused, ended] : ended_) ended.going = false;
}

}  // namespace epd
