#include "client/c/operation.h"

#include <new>
#include <utility>

#include "client/c/operation_call.h"

namespace epd::client {

OperationRun::OperationRun(std::shared_ptr<Session> session, std::shared_ptr<Group> group,
                           uint32_t rank, CallKey key, std::unique_ptr<Operation> operation)
    : session_(std::move(session)),
      group_(std::move(group)),
      rank_(rank),
      key_(std::move(key)),
      operation_(std::move(operation)) {}

// Under way only where memory has run out.
OperationRun::~OperationRun() {
  if (!is_let_in_) return;
  call_ = nullptr;
  formation_ = nullptr;
  operation_->ZeroOutputs();
  // Where there is no memory to say that calls have drained either, epd ends the session.
  try {
    group_->EndCall(rank_, /*failed=*/true);
  } catch (const std::bad_alloc&) {
  }
}

bool OperationRun::GoOn(Clock::time_point until) {
  if (!begun_) {
    // Calls wait while a group forms.
    const bool may_wait = until == Clock::time_point::max();
    if (!may_wait && !group_->IsReady()) return false;
    status_ = session_->BeforeCallOf(*group_);
    Status refused;
    if (status_.code == Code::kResourceExhausted) refused = std::exchange(status_, {});
    if (status_.ok()) status_ = group_->BeginCall(rank_, may_wait, &key_, &formation_);
    if (status_.ok() && formation_ == nullptr) return false;
    is_let_in_ = status_.ok();
    begun_ = true;
    if (!status_.ok()) {
      EndRefused();
      return true;
    }
    epoch_ = formation_->epoch;
    call_ = std::make_unique<Call>(
        Call::Of{*session_, *group_, *operation_, rank_, key_, std::move(refused)}, formation_);
  }
  if (call_ != nullptr) {
    if (!call_->GoOn(until)) return false;
    EndCall();
  }
  return true;
}

void OperationRun::EndCall() {
  status_ = call_->status();
  phase_ = call_->phase();
  call_ = nullptr;
  formation_ = nullptr;
  is_let_in_ = false;
  group_->EndCall(rank_, !status_.ok());
  if (status_.ok()) return;
  session_->Settle();
  Fail();
}

void OperationRun::EndRefused() {
  if (formation_ != nullptr) {
    epoch_ = formation_->epoch;
    Call call({*session_, *group_, *operation_, rank_, key_}, std::exchange(formation_, nullptr));
    status_ = call.AskWhyEnded(status_);
  } else if (const auto last = group_->current()) {
    epoch_ = last->epoch;
  }
  Fail();
}

void OperationRun::Fail() {
  operation_->ZeroOutputs();
  status_ = AtPlace(std::move(status_),
                    {.group = group_->name(), .epoch = epoch_, .rank = rank_, .phase = phase_});
}

Status FromKernel(const KernelError& error) {
  if (error.ok()) return {};
  return {error.code, ToString(error)};
}

}  // namespace epd::client
