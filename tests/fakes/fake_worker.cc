// The fake daemon's worker: matches uses by identity and answers them.
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "proto/epd/v1/slot_word.h"
#include "tests/fakes/fake_daemon_state.h"

namespace epd::fakes {
namespace {

std::string KeyOf(const shm::SlotRequest& r) {
  std::string key(reinterpret_cast<const char*>(r.program), sizeof r.program);
  for (const uint64_t part :
       {r.group_id, r.formation, r.execution, uint64_t{r.ordinal}, uint64_t{r.occurrence}}) {
    key += '/' + std::to_string(part);
  }
  return key;
}

}  // namespace

void FakeDaemon::Work() {
  while (!stop_) {
    bool busy = false;
    std::vector<pollfd> fds;
    {
      std::lock_guard lock(mutex_);
      for (const auto& session : sessions_) session->segment->header.asleep.store(1);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      busy = working_ && Scan();
      for (const auto& session : sessions_) fds.push_back({session->event_fd, POLLIN, 0});
    }
    if (busy) continue;
    if (poll(fds.data(), fds.size(), 2) <= 0) continue;
    for (const pollfd& fd : fds) {
      uint64_t count = 0;
      if (fd.revents != 0 && read(fd.fd, &count, sizeof count) == sizeof count) rings_ += count;
    }
  }
}

bool FakeDaemon::Scan() {
  bool busy = false;
  for (const auto& session : sessions_) {
    for (int slot = 0; slot < static_cast<int>(shm::kSlotsPerSession); ++slot) {
      shm::Slot& s = session->segment->slots[slot];
      if (shm::Ready(s.word.load(std::memory_order_acquire)) != shm::kArmed) continue;
      uint32_t& claim = session->last_claim[static_cast<size_t>(slot)];
      claim = std::max(claim + 1, shm::kFirstClaimId);
      if (!shm::Claim(s.word, claim)) continue;
      busy = true;
      const shm::SlotRequest request = s.request;
      if (request.step == shm::Step::kAnnounce) Announce(*session, slot, request);
      if (request.step == shm::Step::kPublish) Publish(*session, slot, request);
      if (request.step == shm::Step::kPulled) Pulled(*session, slot, request);
    }
  }
  return busy;
}

void FakeDaemon::Announce(Session& session, int slot, const shm::SlotRequest& request) {
  const Group* group = FindGroup(request.group_id);
  if (group == nullptr || group->reforming || group->formation != request.formation) {
    return Answer(session, slot, 10, "stale formation");
  }
  const std::string key = KeyOf(request);
  Operation* operation = nullptr;
  for (const auto& [id, known] : operations_) {
    if (known->key == key && !known->ranks[request.rank].announced) operation = known.get();
  }
  if (operation == nullptr) {
    auto made = std::make_unique<Operation>();
    operation = made.get();
    operation->op_id = next_op_id_++;
    operation->key = key;
    operation->ranks.resize(group->members.size());
    operations_[operation->op_id] = std::move(made);
  }
  operation->ranks[request.rank] = {&session, slot, true, false, false};
  operation->bytes = std::max(operation->bytes, request.stage_bytes);
  if (request.error_code != 0 && operation->error_code == 0) {
    operation->error_code = request.error_code;
    operation->error = "rank " + std::to_string(request.rank) + ": " + request.error;
  }
  const auto& ranks = operation->ranks;
  if (!std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.announced; })) return;
  operation->bytes = (operation->bytes + 4095) & ~uint64_t{4095};
  if (next_offset_ + operation->bytes > kArenaBytes) next_offset_ = 0;
  operation->offset = next_offset_;
  next_offset_ += operation->bytes;
  for (const Operation::Rank& rank : operation->ranks) {
    shm::SlotReply& reply = rank.session->segment->slots[rank.slot].reply;
    reply.op_id = operation->op_id;
    reply.region_offset = operation->offset;
    reply.region_bytes = operation->bytes;
    Answer(*rank.session, rank.slot, operation->error_code, operation->error);
  }
  if (operation->error_code != 0) operations_.erase(operation->op_id);
}

void FakeDaemon::Publish(Session& session, int slot, const shm::SlotRequest& request) {
  const auto found = operations_.find(request.operation.op_id);
  if (found == operations_.end()) return Answer(session, slot, 10, "no such operation");
  Operation& operation = *found->second;
  operation.ranks[request.rank].slot = slot;
  operation.ranks[request.rank].published = true;
  const auto& ranks = operation.ranks;
  if (!std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.published; })) return;
  if (end_when_published_) EndSessions(operation);
  for (const Operation::Rank& rank : operation.ranks) {
    Answer(*rank.session, rank.slot, publish_code_, publish_message_);
  }
  if (publish_code_ != 0) operations_.erase(found);
}

void FakeDaemon::Pulled(Session& session, int slot, const shm::SlotRequest& request) {
  const auto found = operations_.find(request.operation.op_id);
  if (found == operations_.end()) return Answer(session, slot, 10, "no such operation");
  Operation& operation = *found->second;
  operation.ranks[request.rank].slot = slot;
  operation.ranks[request.rank].pulled = true;
  const auto& ranks = operation.ranks;
  if (!std::all_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.pulled; })) return;
  for (const Operation::Rank& rank : operation.ranks) Answer(*rank.session, rank.slot, 0, "");
  operations_.erase(found);
}

void FakeDaemon::Answer(Session& session, int slot, uint32_t code, const std::string& message) {
  shm::Slot& s = session.segment->slots[slot];
  std::strncpy(s.reply.message, message.c_str(), shm::kMessageBytes - 1);
  shm::Answer(s.word, session.last_claim[static_cast<size_t>(slot)], code);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto* done = reinterpret_cast<uint32_t*>(&s.word) + 1;
  if (s.sleeping.load() != 0) syscall(SYS_futex, done, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace epd::fakes
