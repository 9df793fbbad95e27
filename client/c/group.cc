#include "client/c/group.h"

#include <algorithm>
#include <cstdio>

#include "client/c/interrupt.h"
#include "client/c/running_deadline.h"

namespace epd::client {
namespace {

// A loop of calls while a rank is lost is to leave the CPU to whoever brings that rank back.
constexpr std::chrono::milliseconds kRetryPause{100};

std::string Listed(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (const uint32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::chrono::nanoseconds FormDeadline(const Formation& formation) {
  const int64_t ns = formation.spec.deadlines.form;
  return ns > 0 ? std::chrono::nanoseconds(ns) : std::chrono::minutes(5);
}

// A copy that holds no arena.
std::shared_ptr<const Formation> WithoutArenas(const Formation& formation) {
  auto copy = std::make_shared<Formation>(formation);
  copy->arenas.clear();
  return copy;
}

}  // namespace

RoutingSpec Formation::Routing(uint32_t top_k, uint32_t alignment) const {
  RoutingSpec routing;
  routing.num_ranks = static_cast<int32_t>(spec.num_ranks);
  routing.num_experts = static_cast<int32_t>(spec.num_experts);
  routing.top_k = static_cast<int32_t>(std::min<uint32_t>(top_k, INT32_MAX));
  routing.alignment = static_cast<int32_t>(std::min<uint32_t>(alignment, INT32_MAX));
  routing.max_tokens = spec.max_tokens_per_rank;
  routing.expert_owner = expert_owner.empty() ? nullptr : expert_owner.data();
  return routing;
}

Group::Group(std::string name, std::vector<uint32_t> ranks, SendDrained send_drained)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      send_drained_(std::move(send_drained)),
      failed_(ranks_.size()) {}

bool Group::Holds(uint32_t rank) const {
  return std::find(ranks_.begin(), ranks_.end(), rank) != ranks_.end();
}

void Group::SetFailed(uint32_t rank, bool failed) {
  const auto index = std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
  failed_[static_cast<size_t>(index)] = failed;
}

bool Group::HasFailed(uint32_t rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  return found != ranks_.end() && failed_[static_cast<size_t>(found - ranks_.begin())];
}

void Group::OnJoined(std::shared_ptr<const Formation> formation) {
  MutexLock lock(mutex_);
  if (state_ == State::kEnded) return;
  last_ = WithoutArenas(*formation);
  formation_ = std::move(formation);
  state_ = State::kReady;
  cause_ = {};
  for (auto& [unused, count] : counts_) count.refused = 0;
  changed_.NotifyAll();
}

void Group::OnReform(const Reform& reform) {
  MutexLock lock(mutex_);
  if (state_ != State::kReady && state_ != State::kReforming) return;
  if (last_ == nullptr || reform.formation != last_->formation)
    return;  // Of a formation long gone.
  state_ = State::kReforming;
  cause_ = reform.cause;
  if (cause_.ok()) cause_ = MakeStatus(Code::kAborted, "the group is formed anew; call again");
  callers_wait_ = reform.wait;
  formation_.reset();
  changed_.NotifyAll();
  MaybeDrain();
}

void Group::OnDraining(const Status& cause) {
  MutexLock lock(mutex_);
  if (state_ != State::kEnded) resumable_ = cause.resumable;
}

void Group::OnEnded(Status cause) {
  MutexLock lock(mutex_);
  if (state_ == State::kEnded) return;
  state_ = State::kEnded;
  resumable_ = cause.resumable;
  cause_ = std::move(cause);
  formation_.reset();
  changed_.NotifyAll();
}

void Group::MaybeDrain() {
  if (state_ != State::kReforming || in_flight_ != 0) return;
  Drained drained;
  drained.group_id = last_->group_id;
  drained.formation = last_->formation;
  for (const auto& [key, count] : counts_) {
    if (count.begun == 0) continue;
    drained.counts.push_back({key.first, std::string(key.second.begin(), key.second.end()),
                              count.begun, HasFailed(key.first)});
  }
  send_drained_(drained);
}

uint64_t Group::BeginExecution(uint32_t rank, const Program& program) {
  MutexLock lock(mutex_);
  if (TriesAgain(rank)) return kRefusedExecution;
  return counts_[{rank, program}].next++;
}

void Group::MarkBegun(uint32_t rank, const Program& program, uint64_t execution) {
  Count& count = counts_[{rank, program}];
  count.next = std::max(count.next, execution + 1);
  count.begun = std::max(count.begun, execution + 1);
}

Status Group::AwaitFormed() {
  const bool wait = state_ == State::kReforming && callers_wait_;
  const Clock::time_point begin = Clock::now();
  RunningDeadline limit(wait ? begin + FormDeadline(*last_) : begin, begin);
  const Interrupts interrupts;
  while (state_ == State::kReforming && callers_wait_) {
    const Clock::time_point look = std::min(limit.NextLook(), Clock::now() + kInterruptLook);
    if (interrupts.any()) return MakeStatus(Code::kCancelled, "interrupted while the group forms");
    if (changed_.WaitUntil(mutex_, look) || !limit.Passed(Clock::now())) continue;
    return MakeStatus(
        Code::kDeadlineExceeded,
        "the group did not become READY again within %lld ms; it is formed anew because: %s",
        static_cast<long long>(FormDeadline(*last_) / std::chrono::milliseconds(1)),
        cause_.message.c_str());
  }
  return {};
}

Status Group::AwaitReady() {
  MutexLock lock(mutex_);
  if (Status late = AwaitFormed(); !late.ok()) return late;
  return state_ == State::kReady ? Status() : cause_;
}

Status Group::BeginCall(uint32_t rank, bool may_wait, CallKey* key,
                        std::shared_ptr<const Formation>* formation) {
  MutexLock lock(mutex_);
  if (!Holds(rank)) {
    return MakeStatus(Code::kInvalidArgument,
                      "this process holds rank %s of the group, not rank %u",
                      Listed(ranks_).c_str(), rank);
  }
  if (!may_wait && state_ != State::kReady) return {};
  // Not where an execution begins: who begins one may hold a lock.
  if (key->execution.value_or(kRefusedExecution) == kRefusedExecution) PaceRetry(rank);
  if (Status late = AwaitFormed(); !late.ok()) return late;
  Count& count = counts_[{rank, key->program}];
  const bool refused = key->execution == kRefusedExecution;
  if (state_ != State::kReady) {
    const Status cause = cause_;
    if (state_ == State::kReforming) {
      if (refused || (!key->execution && TriesAgain(rank))) {
        key->execution = count.next + count.refused++;  // To ask why.
      } else {
        // The peers that got further failed this execution too; epd must not count it into the next
        // formation.
        if (!key->execution) key->execution = count.next;
        MarkBegun(rank, key->program, *key->execution);
        SetFailed(rank, true);
        MaybeDrain();
      }
      *formation = last_;
    }
    return cause;
  }
  if (refused) {
    return MakeStatus(Code::kAborted,
                      "the execution began before the group was re-formed; run it again");
  }
  if (!key->execution) key->execution = count.next++;
  MarkBegun(rank, key->program, *key->execution);
  ++in_flight_;
  *formation = formation_;
  return {};
}

bool Group::BeginStreams(uint64_t after, Clock::time_point deadline,
                         std::shared_ptr<const Formation>* formation) {
  MutexLock lock(mutex_);
  const auto ready = [&] {
    mutex_.AssertHeld();
    return state_ == State::kEnded || (state_ == State::kReady && formation_->formation != after);
  };
  if (!changed_.WaitUntil(mutex_, deadline, ready) || state_ == State::kEnded) return false;
  ++in_flight_;
  *formation = formation_;
  return true;
}

bool Group::AwaitFormationEnd(uint64_t number, Clock::time_point deadline) {
  MutexLock lock(mutex_);
  return changed_.WaitUntil(mutex_, deadline, [&] {
    mutex_.AssertHeld();
    return state_ != State::kReady || formation_->formation != number;
  });
}

bool Group::HasEnded(Status* cause) const {
  MutexLock lock(mutex_);
  if (state_ != State::kEnded) return false;
  *cause = cause_;
  return true;
}

bool Group::IsReady() const {
  MutexLock lock(mutex_);
  return state_ == State::kReady;
}

bool Group::RefusesCalls() const {
  MutexLock lock(mutex_);
  return state_ == State::kReforming && !callers_wait_;
}

epd_group_stopping Group::stopping() const {
  MutexLock lock(mutex_);
  if (!resumable_) return EPD_GROUP_STAYS;
  return state_ == State::kEnded ? EPD_GROUP_STOPPED : EPD_GROUP_STOPS;
}

void Group::EndCall(uint32_t rank, bool failed) {
  MutexLock lock(mutex_);
  SetFailed(rank, failed);
  EndOne();
}

bool Group::TriesAgain(uint32_t rank) const {
  return state_ == State::kReforming && !callers_wait_ && HasFailed(rank);
}

void Group::PaceRetry(uint32_t rank) {
  changed_.WaitUntil(mutex_, Clock::now() + kRetryPause, [&] {
    mutex_.AssertHeld();
    return !TriesAgain(rank);
  });
}

void Group::EndStreams() {
  MutexLock lock(mutex_);
  EndOne();
}

void Group::EndOne() {
  if (--in_flight_ > 0) return;
  changed_.NotifyAll();
  MaybeDrain();
}

bool Group::IsCurrent(const Formation& formation) const {
  MutexLock lock(mutex_);
  return last_ != nullptr && last_->formation == formation.formation &&
         last_->group_id == formation.group_id;
}

std::shared_ptr<const Formation> Group::current() const {
  MutexLock lock(mutex_);
  return last_;
}

Status Group::Close(Status cause, Clock::time_point deadline) {
  OnEnded(std::move(cause));
  MutexLock lock(mutex_);
  const auto none_in_flight = [this] {
    mutex_.AssertHeld();
    return in_flight_ == 0;
  };
  if (changed_.WaitUntil(mutex_, deadline, none_in_flight)) return {};
  return MakeStatus(Code::kDeadlineExceeded, "%d calls of the group are still in flight",
                    in_flight_);
}

}  // namespace epd::client
