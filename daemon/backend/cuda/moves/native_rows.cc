#include "daemon/backend/cuda/moves/native_rows.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "proto/epd/v1/operation_kind.h"

namespace epd::cuda {

absl::StatusOr<std::unique_ptr<MemberRows>> NativeRows::Create(const MoveGroup& group,
                                                               const MoveJob& job, int self) {
  std::unique_ptr<NativeRows> rows(new NativeRows(group, job, self));
  if (absl::Status planned = rows->Plan(); !planned.ok()) return planned;
  // The sizes of a prepare are known without a plan.
  if (job.kind == shm::Kind::kPrepare) {
    rows->traffic_ = PlanMemberTraffic(rows->moves_->Shape(), nullptr, self);
  }
  return rows;
}

bool NativeRows::Sends(const MoveJob& job) {
  return std::any_of(job.parts.begin(), job.parts.end(),
                     [](const MovePart& part) { return !part.local && !part.mapped; });
}

absl::Status NativeRows::Plan() {
  absl::StatusOr<RowMoves> moves = RowMoves::Create(group_, job_, sends_ ? &traffic_ : nullptr);
  if (!moves.ok()) return moves.status();
  moves_.emplace(*std::move(moves));
  return absl::OkStatus();
}

MoveRoom NativeRows::read_room() const { return needs_counts() ? moves_->read_room() : MoveRoom{}; }

absl::Status NativeRows::TakeRead(const uint8_t* host) {
  absl::StatusOr<std::vector<int32_t>> counts = moves_->CountsRead(host);
  if (!counts.ok()) return counts.status();
  std::vector<uint32_t> tokens = moves_->TokensIn(host, *counts);
  return PlanBy({*std::move(counts), std::move(tokens)});
}

// The kernels compare them with the plan all the same (Outcome).
bool NativeRows::TakeKnown(const PlanSizes& known) {
  if (!needs_counts() || !moves_->Fit(known.counts)) return false;
  if (!shm::Scatters(job_.kind)) return PlanBy({known.counts}).ok();
  return !known.tokens_to.empty() && PlanBy(known).ok();
}

// Room for all that the counts allow: what other members have for the ranks here is not known yet.
absl::Status NativeRows::PlanBy(PlanSizes sizes) {
  sizes_ = std::move(sizes);
  traffic_ = PlanMemberTraffic(moves_->Shape(), counts().data(), self_);
  // Of the landings it had no room.
  return Plan();
}

absl::Status NativeRows::TakeNumbers(const std::vector<uint32_t>& tokens_from) {
  if (absl::Status fit = moves_->CheckImages(); !fit.ok() || !needs_counts()) return fit;
  TrafficShape shape = moves_->Shape();
  if (absl::Status taken = TakeTokens(tokens_from, shape); !taken.ok()) return taken;
  traffic_ = PlanMemberTraffic(shape, counts().data(), self_);
  return absl::OkStatus();
}

// Of the pairs with a rank of this member: what it has said itself, and what the others have.
absl::Status NativeRows::TakeTokens(const std::vector<uint32_t>& tokens_from,
                                    TrafficShape& shape) const {
  if (tokens_from.empty()) return absl::OkStatus();
  const size_t ranks = shape.member_of_rank.size();
  if (tokens_from.size() != sizes_.tokens_to.size()) {
    return absl::InternalError("a turn with the tokens of another group");
  }
  shape.tokens_between.resize(ranks * ranks);
  auto from = tokens_from.begin();
  for (size_t source = 0; source < ranks; ++source) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (shape.member_of_rank[rank] == self_) {
        shape.tokens_between[source * ranks + rank] = *from++;
      }
    }
  }
  auto to = sizes_.tokens_to.begin();
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (shape.member_of_rank[rank] != self_) continue;
    std::copy_n(to, ranks,
                shape.tokens_between.begin() + static_cast<std::ptrdiff_t>(rank * ranks));
    to += static_cast<std::ptrdiff_t>(ranks);
  }
  return absl::OkStatus();
}

absl::Status NativeRows::Outcome(const uint8_t* host) const {
  if (absl::Status found = moves_->Outcome(host); !found.ok() || !needs_counts()) return found;
  const absl::StatusOr<std::vector<int32_t>> seen = moves_->CountsSeen(host);
  if (seen.ok() && *seen == counts()) return absl::OkStatus();
  return absl::DataLossError(
      "a rank's plan has changed while its rows were on their way; prepare again");
}

}  // namespace epd::cuda
