#include "daemon/backend/cuda/members/direct_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/moves/direct_rows.h"

namespace epd::cuda {

DirectLink::DirectLink(CudaDevice& device, std::unique_ptr<MemberLink> otherwise,
                       const Options& options, std::vector<NeighbourMessage>& out,
                       std::vector<std::string>& notes)
    : otherwise_(std::move(otherwise)),
      options_(options),
      notes_(notes),
      peers_(device, options.membership, out) {}

RowLink DirectLink::row_link() const {
  if (falls_back_) return {.name = otherwise_->row_link().name, .why = peers_.problem()};
  return state_ == CommState::kReady ? RowLink{.name = "peer_memory"} : RowLink{};
}

void DirectLink::Begin(const std::optional<NcclUniqueId>& id, const MovePlaces& places,
                       Stream stream, absl::Time now) {
  if (state_ != CommState::kNone) return;
  begun_ = Begun{id, places, stream};
  state_ = CommState::kForming;
  peers_.Greet(now + options_.form_limit);
}

void DirectLink::Decide(absl::Time now) {
  const Begun begun = *std::exchange(begun_, std::nullopt);
  const std::string problem = peers_.problem();
  if (problem.empty()) {
    state_ = CommState::kReady;
    notes_.push_back(absl::StrCat(peers_.Where(), ": rows go directly between the node's devices"));
    return;
  }
  if (otherwise_ == nullptr) {
    return Gone(absl::FailedPreconditionError(absl::StrCat(
        peers_.Where(), ": rows cannot go directly between the node's devices: ", problem,
        "; and they cannot go by NCCL: ", options_.no_otherwise, "; see epctl doctor")));
  }
  falls_back_ = true;
  notes_.push_back(
      absl::StrCat(peers_.Where(), ": rows go by NCCL between the node's devices: ", problem));
  otherwise_->Begin(begun.id, begun.places, begun.stream, now);
}

void DirectLink::Poll(absl::Time now) {
  if (falls_back_) return otherwise_->Poll(now);
  if (state_ == CommState::kReady) return peers_.Poll();
  if (state_ != CommState::kForming) return;
  const absl::Status greeted = peers_.Greeted(now);
  if (greeted.ok()) return Decide(now);
  if (!absl::IsUnavailable(greeted)) Gone(greeted);
}

void DirectLink::Gone(const absl::Status& cause) {
  if (state_ == CommState::kGone) return;
  state_ = CommState::kGone;
  cause_ = cause;
  begun_.reset();
}

// What is in the stream reads memory that stays as long as it is mapped here, and ends by itself.
void DirectLink::End(const std::string& who, bool worker_gone, absl::Time now) {
  if (falls_back_) return otherwise_->End(who, worker_gone, now);
  Gone(absl::UnavailableError(
      absl::StrCat(peers_.Where(), ": ", who, " is lost; the group forms again")));
}

void DirectLink::OperationLate(absl::Time now) {
  if (falls_back_) return otherwise_->OperationLate(now);
  Gone(peers_.Late());
}

absl::StatusOr<std::unique_ptr<MemberRows>> DirectLink::Rows(const MoveGroup& group,
                                                             const MoveJob& job) {
  if (falls_back_) return otherwise_->Rows(group, job);
  return DirectRows::Create(group, job, peers_);
}

absl::Status DirectLink::Issue(const MoveSteps& steps, Stream stream, absl::Time now) {
  return falls_back_ ? otherwise_->Issue(steps, stream, now) : absl::OkStatus();
}

void DirectLink::Completed() {
  if (falls_back_) otherwise_->Completed();
}

}  // namespace epd::cuda
