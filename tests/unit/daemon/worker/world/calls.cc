#include "tests/unit/daemon/worker/world/calls.h"

#include <algorithm>

#include "tests/unit/daemon/worker/world/make_request.h"

namespace epd::world {

using State = Call::State;

Calls::Calls(World& world) : w_(world) {
  w_.on_answer = [this](Worker& worker, const AnswerSubmission& e) { Answered(worker, e); };
}

void Calls::Announce(Call call, shm::SlotRequest request) {
  const Group& group = *call.group;
  if (ReadsManyEagerBuffers(call.session)) request.announce.client = shm::kReadsManyEagerBuffers;
  call.num_buffers = static_cast<uint32_t>(
      shm::NumBuffersOf(request.stage_bytes, w_.options().engine.eager.buffer_bytes));
  if (call.formation == group.formation) call.eager_buffer = FreeEagerBuffers(call);
  if (call.eager_buffer.has_value()) {
    SetEagerBuffer(request, *call.eager_buffer);
    w_.num_in_several += call.num_buffers > 1;
  }
  if (w_.Is(Sabotage::kWrongExecution) && w_.OneIn(2)) ++request.execution;
  call.submission = {.session = call.session, .slot = 0, .claim = NextClaim()};
  call.since = w_.now;
  call.run = w_.worker(call.worker()).run;
  const size_t index = w_.calls.size();
  w_.call_of[call.submission] = index;
  w_.running.insert(index);
  w_.calls.push_back(call);
  w_.Take(w_.worker(call.worker()), call.submission, request);
}

// Of the session's, that no call of it uses.
std::optional<uint8_t> Calls::FreeEagerBuffers(const Call& call) const {
  const Group& group = *call.group;
  if (group.spec.executor == Executor::kWorker || w_.Chance(10)) return std::nullopt;
  const auto told = num_eager_.find({call.worker(), group.sets.at(call.worker())});
  const uint32_t num_told = told == num_eager_.end() ? 0 : told->second;
  const bool one = num_told <= w_.options().engine.eager.few_buffers;
  if (one && call.num_buffers > 1) return std::nullopt;
  for (uint32_t first = 0; first + call.num_buffers <= num_told; ++first) {
    const bool busy = std::any_of(w_.running.begin(), w_.running.end(), [&](size_t running) {
      const Call& other = w_.calls[running];
      return other.session == call.session && other.eager_buffer.has_value() &&
             first < *other.eager_buffer + other.num_buffers &&
             *other.eager_buffer < first + call.num_buffers;
    });
    if (!busy) return static_cast<uint8_t>(first);
  }
  return std::nullopt;
}

void Calls::NextStep(size_t index) {
  Call& call = w_.calls[index];
  const bool publishes = call.state == State::kCopying;
  shm::SlotRequest request =
      MakeStep({.group = call.group->id, .rank = call.rank},
               publishes ? shm::Step::kPublish : shm::Step::kPulled, call.operation);
  if (publishes && !w_.quiet && w_.Chance(1)) {
    request.error_code = 15;
    call.wrong = true;
  }
  Worker& worker = w_.worker(call.worker());
  if (const auto number = worker.numbers.find(call.operation);
      publishes && request.error_code == 0 && number != worker.numbers.end())
    w_.published[call.Named(number->second)].insert(Rank(call.rank));
  call.state = publishes ? State::kPublished : State::kPulled;
  w_.touching.erase(index);
  call.submission.claim = NextClaim();
  call.since = w_.now;
  w_.call_of[call.submission] = index;
  w_.Take(worker, call.submission, request);
}

void Calls::Answered(Worker& worker, const AnswerSubmission& e) {
  const auto found = w_.call_of.find(e.submission);
  if (found == w_.call_of.end()) return;  // A hostile one.
  const size_t index = found->second;
  w_.call_of.erase(found);
  Call& call = w_.calls[index];
  if (call.dead) return;
  if (!e.status.ok()) return End(index, e.status);
  if (call.state == State::kPulled) return End(index, absl::OkStatus());
  if (call.state == State::kPublished) w_.Happens(&worker, Ends{&call, absl::OkStatus()});
  if (call.state == State::kAnnounced) {
    call.operation = e.operation;
    if (const auto eager = worker.eager.find(e.submission); eager != worker.eager.end()) {
      call.told = eager->second;
    } else {
      return TakeRegion(worker, index, e);
    }
  }
  call.state = State::kReading;
  if (call.told.empty())
    w_.touching[index] = {.worker = worker.index,
                          .area = worker.regions[call.operation],
                          .operation = call.operation,
                          .session = call.session};
  on_hold(index);
}

void Calls::TakeRegion(Worker& worker, size_t index, const AnswerSubmission& e) {
  Call& call = w_.calls[index];
  const Area area{call.group->sets.at(worker.index), e.region.offset, e.region.bytes};
  call.state = State::kCopying;
  w_.identities.emplace(call.Named(e.plan_id), call.identity);
  num_eager_[{worker.index, area.set}] = e.region.eager.num_eager_buffers;
  worker.regions[e.operation] = area;
  w_.touching[index] = {
      .worker = worker.index, .area = area, .operation = e.operation, .session = call.session};
  on_hold(index);
}

void Calls::End(size_t index, const absl::Status& status) {
  Call& call = w_.calls[index];
  w_.Happens(nullptr, Ends{&call, status});
  if (std::get<3>(call.identity) >= 0) w_.endings.emplace(call.identity, status);
  call.state = State::kEnded;
  call.failed = !status.ok();
  w_.running.erase(index);
  w_.touching.erase(index);
  on_end(call, status);
}

void Calls::Abandon(SessionId session) {
  std::erase_if(w_.running, [&](size_t running) {
    Call& call = w_.calls[running];
    if (call.session != session) return false;
    w_.touching.erase(running);
    return call.dead = true;
  });
}

std::vector<size_t> Calls::CallsWithout(SessionId session) const {
  std::vector<size_t> calls;
  for (const size_t running : w_.running) {
    const Call& call = w_.calls[running];
    const auto& members = call.group->members;
    if (!call.group->ended && std::count(members.begin(), members.end(), session) == 0)
      calls.push_back(running);
  }
  return calls;
}

}  // namespace epd::world
