#include "daemon/backend/cuda/members/mixed_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/moves/direct_rows.h"

namespace epd::cuda {

CommState MixedLink::state() const {
  const CommState state = by_nccl_->state();
  return state == CommState::kReady && !decided_ ? CommState::kForming : state;
}

RowLink MixedLink::row_link() const {
  if (!decided_) return {};
  if (!problem_.empty()) return {.name = by_nccl_->row_link().name, .why = problem_};
  return {.name = "peer_memory_and_nccl"};
}

void MixedLink::Begin(const std::optional<NcclUniqueId>& id, const MovePlaces& places,
                      Stream stream, absl::Time now) {
  if (by_nccl_->state() != CommState::kNone) return;
  peers_.Greet(now + form_limit_);
  by_nccl_->Begin(id, places, stream, now);
}

void MixedLink::Decide() {
  decided_ = true;
  problem_ = peers_.problem();
  notes_.push_back(
      problem_.empty()
          ? absl::StrCat(peers_.Where(),
                         ": rows go directly between the node's devices, and by NCCL "
                         "between nodes")
          : absl::StrCat(peers_.Where(),
                         ": rows go by NCCL also between the node's devices: ", problem_));
}

void MixedLink::Poll(absl::Time now) {
  by_nccl_->Poll(now);
  if (decided_) return peers_.Poll();
  if (state() != CommState::kForming) return;
  const absl::Status greeted = peers_.Greeted(now);
  if (greeted.ok()) return Decide();
  if (absl::IsUnavailable(greeted)) return;
  cause_ = greeted;
  by_nccl_->End("a worker of this node", /*worker_gone=*/false, now);
}

void MixedLink::OperationLate(absl::Time now) {
  if (state() == CommState::kReady && problem_.empty()) cause_ = peers_.Late();
  by_nccl_->OperationLate(now);
}

absl::StatusOr<std::unique_ptr<MemberRows>> MixedLink::Rows(const MoveGroup& group,
                                                            const MoveJob& job) {
  if (!problem_.empty()) return by_nccl_->Rows(group, job);
  return DirectRows::Create(group, job, peers_);
}

}  // namespace epd::cuda
