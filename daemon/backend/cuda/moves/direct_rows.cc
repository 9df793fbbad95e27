#include "daemon/backend/cuda/moves/direct_rows.h"

#include <utility>

namespace epd::cuda {

absl::StatusOr<std::unique_ptr<MemberRows>> DirectRows::Create(const MoveGroup& group,
                                                               const MoveJob& job,
                                                               DirectPeers& peers) {
  std::unique_ptr<DirectRows> rows(new DirectRows(group, job, peers));
  absl::StatusOr<RowMoves> moves = RowMoves::Create(rows->group_, rows->job_);
  if (!moves.ok()) return moves.status();
  rows->moves_.emplace(*std::move(moves));
  return rows;
}

void DirectRows::TakePlace(uint64_t place) {
  place_ = place;
  peers_.Publish(place, job_);
}

bool DirectRows::HasRegions() {
  unreadable_ = peers_.TakeRegions(place_, group_, job_, regions_);
  return !absl::IsUnavailable(unreadable_);
}

MoveSteps DirectRows::Steps(const MovePlaces& places, const DeviceShape& device) {
  if (!unreadable_.ok()) return {};
  MovePlaces all = places;
  all.peer_regions = regions_;
  return moves_->Steps(all, device);
}

absl::Status DirectRows::Outcome(const uint8_t* host) const {
  return unreadable_.ok() ? moves_->Outcome(host) : unreadable_;
}

}  // namespace epd::cuda
