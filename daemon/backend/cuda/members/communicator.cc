#include "daemon/backend/cuda/members/communicator.h"

#include "absl/strings/str_cat.h"

namespace epd::cuda {

Communicator::Communicator(const NcclTable& nccl, const CommunicatorOptions& options)
    : nccl_(nccl), options_(options) {}

Communicator::~Communicator() {
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

void Communicator::Begin(const NcclUniqueId& id, absl::Time now) {
  if (machine_.On(CommEvent::kBegin) != CommAction::kInit) return;
  deadline_ = now + options_.form_limit;
  NcclConfig config;
  if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
  const NcclResult code = nccl_.init_rank(&comm_, options_.num_ranks, id, options_.rank, &config);
  if (code == kNcclSuccess || code == kNcclInProgress) return;
  Take(CommEvent::kFailed, Failure("ncclCommInitRankConfig", code), now);
}

void Communicator::Poll(absl::Time now) {
  const CommState state = machine_.state();
  const bool waiting = state == CommState::kForming || state == CommState::kEnding;
  if (!waiting && state != CommState::kReady) return;
  NcclResult reported = kNcclSuccess;
  const NcclResult code = nccl_.get_async_error(comm_, &reported);
  const NcclResult worst = code != kNcclSuccess ? code : reported;
  if (worst != kNcclSuccess && worst != kNcclInProgress) {
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
      if (code != kNcclSuccess && code != kNcclInProgress) {
        Take(CommEvent::kFailed, Failure("ncclCommFinalize", code), now);
      }
      return;
    }
    case CommAction::kAbort:
      cause_ = why.ok() ? absl::AbortedError(absl::StrCat(Where(), ": released with ", num_open_,
                                                          " operations open"))
                        : why;
      return Abort();
  }
}

// After finalize has succeeded on all ranks, destroy waits for nobody.
void Communicator::Destroy(absl::Time now) {
  finalizing_ = false;
  deadline_ = absl::InfiniteFuture();
  const NcclResult code = nccl_.destroy(comm_);
  if (code != kNcclSuccess) return Take(CommEvent::kFailed, Failure("ncclCommDestroy", code), now);
  comm_ = nullptr;
  machine_.On(CommEvent::kGone);
}

void Communicator::Abort() {
  finalizing_ = false;
  deadline_ = absl::InfiniteFuture();
  launching_ = false;
  if (comm_ != nullptr) nccl_.abort(comm_);  // Frees it, whatever it returns.
  comm_ = nullptr;
  num_open_ = 0;
  machine_.On(CommEvent::kGone);
}

NcclResult Communicator::IssueOne(const PeerBytes& peer, Stream stream) const {
  if (peer.send_bytes > 0) {
    const NcclResult code =
        nccl_.send(peer.send, peer.send_bytes, kNcclBytes, peer.peer, comm_, stream);
    if (code != kNcclSuccess && code != kNcclInProgress) return code;
  }
  if (peer.receive_bytes == 0) return kNcclSuccess;
  return nccl_.receive(peer.receive, peer.receive_bytes, kNcclBytes, peer.peer, comm_, stream);
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
    if (code != kNcclSuccess && code != kNcclInProgress) break;
    call = "ncclSend or ncclRecv";
    code = IssueOne(peer, stream);
  }
  // The group is closed even after a failure: an open one would swallow every later call.
  const NcclResult closed = grouped ? nccl_.group_end() : kNcclSuccess;
  if (code == kNcclSuccess || code == kNcclInProgress) {
    if (closed != kNcclSuccess && closed != kNcclInProgress) call = "ncclGroupEnd";
    code = closed;
  }
  if (code == kNcclSuccess || code == kNcclInProgress) {
    ++num_open_;
    launching_ = code == kNcclInProgress;
    return absl::OkStatus();
  }
  const absl::Status failure = Failure(call, code);
  Take(CommEvent::kFailed, failure, now);
  return failure;
}

}  // namespace epd::cuda
