#include "daemon/backend/cuda/members/communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd::cuda {
namespace {

bool Bad(NcclResult code) { return code != kNcclSuccess && code != kNcclInProgress; }

}  // namespace

Communicator::Communicator(const NcclTable& nccl, const CommunicatorOptions& options)
    : nccl_(nccl), options_(options) {}

Communicator::~Communicator() {
  if (thread_.open()) {
    if (call_->what != Called::kInit) return;
    if (call_->passed.exchange(true)) comm_ = call_->comm;
  }
  if (comm_ != nullptr) nccl_.abort(comm_);
}

std::string Communicator::Where() const {
  return absl::StrCat("group_id=", options_.group_id, " epoch=", options_.epoch,
                      " rank=", options_.rank);
}

absl::Status Communicator::Failure(const char* call, NcclResult code) const {
  const char* text = nccl_.get_error_string == nullptr ? nullptr : nccl_.get_error_string(code);
  return absl::AbortedError(absl::StrCat(Where(), ": ", call, ": ",
                                         text == nullptr ? "error" : text, " (", code,
                                         "); the group forms again"));
}

// ---- calls that may block ----

void Communicator::Post(Called what, std::function<NcclResult(Call&)> make) {
  call_ = std::make_shared<Call>(what);
  // It may outlive this.
  thread_.Post([call = call_, make = std::move(make), abort = nccl_.abort,
                enter = options_.enter_device]() -> absl::Status {
    if (enter != nullptr) {
      if (absl::Status entered = enter(); !entered.ok()) return entered;
    }
    call->code = make(*call);
    if (call->what == Called::kInit && call->passed.exchange(true) && call->comm != nullptr) {
      abort(call->comm);
    }
    return absl::OkStatus();
  });
}

void Communicator::TakeCall(absl::Time now) {
  const std::optional<absl::Status> done = thread_.Take();
  if (!done.has_value()) return;
  const std::shared_ptr<Call> call = std::exchange(call_, nullptr);
  if (call->what == Called::kInit) comm_ = call->comm;
  const bool failed = !done->ok() || Bad(call->code);
  if (call->what == Called::kAbort || (call->what == Called::kDestroy && !failed)) return Gone();
  // While it was under way it was given up.
  if (machine_.state() == CommState::kAborting) return comm_ == nullptr ? Gone() : PostAbort();
  if (!failed) return;
  const char* const name =
      call->what == Called::kInit ? "ncclCommInitRankConfig" : "ncclCommDestroy";
  Take(CommEvent::kFailed, done->ok() ? Failure(name, call->code) : *done, now);
}

void Communicator::CheckCall(absl::Time now) {
  if (now < deadline_) return;
  if (machine_.state() == CommState::kForming) {
    return Take(CommEvent::kLate,
                absl::DeadlineExceededError(
                    absl::StrCat(Where(), ": NCCL has not begun to form the communicator within ",
                                 absl::FormatDuration(options_.form_limit))),
                now);
  }
  if (!broken_.ok()) return;
  broken_ = absl::DeadlineExceededError(
      absl::StrCat(Where(), ": NCCL has not ended the communicator within ",
                   absl::FormatDuration(options_.end_limit), "; this worker is replaced"));
}

void Communicator::Begin(const NcclUniqueId& id, absl::Time now) {
  if (machine_.On(CommEvent::kBegin) != CommAction::kInit) return;
  deadline_ = now + options_.form_limit;
  Post(Called::kInit, [id, init = nccl_.init_rank, num_ranks = options_.num_ranks,
                       rank = options_.rank, max_ctas = options_.max_ctas](Call& call) {
    NcclConfig config;
    if (max_ctas > 0) config.max_ctas = max_ctas;
    return init(&call.comm, num_ranks, id, rank, &config);
  });
}

// After finalize has succeeded on all ranks, destroy waits for nobody.
void Communicator::Destroy(absl::Time now) {
  finalizing_ = false;
  deadline_ = now + options_.end_limit;
  Post(Called::kDestroy, [comm = comm_, destroy = nccl_.destroy](Call&) { return destroy(comm); });
}

void Communicator::Abort(absl::Time now) {
  finalizing_ = false;
  launching_ = false;
  num_open_ = 0;
  deadline_ = now + options_.end_limit;
  if (thread_.open()) return;  // TakeCall goes on.
  if (comm_ == nullptr) return Gone();
  PostAbort();
}

// Frees it, whatever it returns.
void Communicator::PostAbort() {
  Post(Called::kAbort, [comm = comm_, abort = nccl_.abort](Call&) { return abort(comm); });
}

void Communicator::Gone() {
  comm_ = nullptr;
  deadline_ = absl::InfiniteFuture();
  machine_.On(CommEvent::kGone);
}

// ---- the rest returns at once ----

void Communicator::Poll(absl::Time now) {
  if (thread_.open()) {
    TakeCall(now);
    if (thread_.open()) return CheckCall(now);
  }
  const CommState state = machine_.state();
  const bool waiting = state == CommState::kForming || state == CommState::kEnding;
  if (!waiting && state != CommState::kReady) return;
  NcclResult reported = kNcclSuccess;
  const NcclResult code = nccl_.get_async_error(comm_, &reported);
  const NcclResult worst = code != kNcclSuccess ? code : reported;
  if (state == CommState::kReady) {
    const bool unnamed = worst == kNcclRemoteError;
    deadline_ = unnamed ? std::min(deadline_, now + options_.naming_limit) : absl::InfiniteFuture();
    if (unnamed && now < deadline_) return;
  }
  if (Bad(worst)) {
    return Take(CommEvent::kFailed, Failure("ncclCommGetAsyncError", worst), now);
  }
  if (worst == kNcclSuccess && state == CommState::kForming) {
    deadline_ = absl::InfiniteFuture();
    return Take(CommEvent::kUp, absl::OkStatus(), now);
  }
  if (worst == kNcclSuccess) launching_ = false;
  if (worst == kNcclSuccess && finalizing_) return Destroy(now);
  if (waiting && now >= deadline_) {
    Take(CommEvent::kLate,
         absl::DeadlineExceededError(absl::StrCat(
             Where(), state == CommState::kForming ? ": not all of " : ": not all of the other ",
             options_.num_ranks,
             state == CommState::kForming ? " ranks entered the communicator in time"
                                          : " ranks left the communicator in time")),
         now);
  }
}

void Communicator::PeerLost(const std::string& who, absl::Time now) {
  Take(CommEvent::kPeerLost,
       absl::UnavailableError(absl::StrCat(Where(), ": ", who, " is lost; the group forms again")),
       now);
}

void Communicator::Release(absl::Time now) { Take(CommEvent::kRelease, absl::OkStatus(), now); }

void Communicator::OperationLate(absl::Time now) {
  Take(CommEvent::kLate,
       absl::DeadlineExceededError(absl::StrCat(
           Where(), ": an operation that was issued did not complete; the group forms again")),
       now);
}

void Communicator::Take(CommEvent event, const absl::Status& why, absl::Time now) {
  const CommAction action = machine_.On(event, num_open_);
  switch (action) {
    case CommAction::kNothing:
    case CommAction::kInit:
      return;
    case CommAction::kDestroy: {
      deadline_ = now + options_.end_limit;
      finalizing_ = true;
      const NcclResult code = nccl_.finalize(comm_);
      if (Bad(code)) {
        Take(CommEvent::kFailed, Failure("ncclCommFinalize", code), now);
      }
      return;
    }
    case CommAction::kAbort:
      cause_ = why.ok() ? absl::AbortedError(absl::StrCat(Where(), ": released with ", num_open_,
                                                          " operations open"))
                        : why;
      return Abort(now);
  }
}

NcclResult Communicator::IssueOne(const PeerBytes& peer, Stream stream) const {
  if (peer.send_bytes > 0) {
    const NcclResult code =
        nccl_.send(peer.send, peer.send_bytes, kNcclInt8, peer.peer, comm_, stream);
    if (Bad(code)) return code;
  }
  if (peer.receive_bytes == 0) return kNcclSuccess;
  return nccl_.receive(peer.receive, peer.receive_bytes, kNcclInt8, peer.peer, comm_, stream);
}

absl::Status Communicator::Issue(const std::vector<PeerBytes>& peers, Stream stream,
                                 absl::Time now) {
  if (!machine_.may_issue()) {
    return absl::FailedPreconditionError(absl::StrCat(Where(), ": the communicator is ",
                                                      std::string(Name(machine_.state())),
                                                      ", expected READY"));
  }
  const char* call = "ncclGroupStart";
  NcclResult code = nccl_.group_start();
  const bool grouped = code == kNcclSuccess;
  for (const PeerBytes& peer : peers) {
    if (Bad(code)) break;
    call = "ncclSend or ncclRecv";
    code = IssueOne(peer, stream);
  }
  // The group is closed even after a failure: an open one would swallow every later call.
  const NcclResult closed = grouped ? nccl_.group_end() : kNcclSuccess;
  if (!Bad(code)) {
    if (Bad(closed)) call = "ncclGroupEnd";
    code = closed;
  }
  if (!Bad(code)) {
    ++num_open_;
    launching_ = code == kNcclInProgress;
    return absl::OkStatus();
  }
  const absl::Status failure = Failure(call, code);
  Take(CommEvent::kFailed, failure, now);
  return failure;
}

}  // namespace epd::cuda
