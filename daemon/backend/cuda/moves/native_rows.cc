#include "daemon/backend/cuda/moves/native_rows.h"

#include <utility>

namespace epd::cuda {

absl::StatusOr<std::unique_ptr<MemberRows>> NativeRows::Create(const MoveGroup& group,
                                                               const MoveJob& job, int self) {
  std::unique_ptr<NativeRows> rows(new NativeRows(group, job, self));
  if (absl::Status planned = rows->Plan(); !planned.ok()) return planned;
  // The sizes of a prepare are known without a plan.
  if (rows->prepares()) rows->traffic_ = PlanMemberTraffic(rows->moves_->Shape(), nullptr, self);
  return rows;
}

absl::Status NativeRows::Plan() {
  absl::StatusOr<RowMoves> moves = RowMoves::Create(group_, job_, &traffic_);
  if (!moves.ok()) return moves.status();
  moves_.emplace(*std::move(moves));
  return absl::OkStatus();
}

uint64_t NativeRows::read_bytes() const { return prepares() ? 0 : moves_->read_bytes(); }

absl::Status NativeRows::TakeRead(const uint8_t* host) {
  absl::StatusOr<std::vector<int32_t>> counts = moves_->CountsIn(host);
  if (!counts.ok()) return counts.status();
  return PlanBy(*std::move(counts));
}

// The kernels compare them with the plan all the same (Outcome).
bool NativeRows::TakeKnown(const std::vector<int32_t>& counts) {
  return !prepares() && moves_->Fit(counts) && PlanBy(counts).ok();
}

absl::Status NativeRows::PlanBy(std::vector<int32_t> counts) {
  counts_ = std::move(counts);
  traffic_ = PlanMemberTraffic(moves_->Shape(), counts_.data(), self_);
  // Of the landings it had no room.
  return Plan();
}

absl::Status NativeRows::TakeCapacities() {
  if (absl::Status fit = moves_->CheckImages(); !fit.ok() || prepares()) return fit;
  traffic_ = PlanMemberTraffic(moves_->Shape(), counts_.data(), self_);
  return absl::OkStatus();
}

absl::Status NativeRows::Outcome(const uint8_t* host) const {
  if (prepares()) return absl::OkStatus();
  if (absl::Status found = moves_->Outcome(host); !found.ok()) return found;
  const absl::StatusOr<std::vector<int32_t>> seen =
      moves_->CountsIn(host + moves_->counts_seen_at());
  if (seen.ok() && *seen == counts_) return absl::OkStatus();
  return absl::DataLossError(
      "a rank's plan has changed while its rows were on their way; prepare again");
}

}  // namespace epd::cuda
