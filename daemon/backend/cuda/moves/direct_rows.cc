#include "daemon/backend/cuda/moves/direct_rows.h"

#include <utility>

namespace epd::cuda {

absl::StatusOr<std::unique_ptr<MemberRows>> DirectRows::Create(const MoveGroup& group,
                                                               const MoveJob& job,
                                                               DirectPeers& peers) {
  std::unique_ptr<DirectRows> direct(new DirectRows(group, job, peers));
  for (size_t rank = 0; rank < job.parts.size(); ++rank) {
    MovePart& part = direct->job_.parts[rank];
    part.mapped = !part.local && peers.is_near(group.member_of_rank[rank]);
  }
  absl::StatusOr<std::unique_ptr<MemberRows>> rows =
      NativeRows::Create(direct->group_, direct->job_, peers.self());
  if (!rows.ok()) return rows.status();
  direct->rows_ = *std::move(rows);
  return direct;
}

absl::Status DirectRows::TakeNumbers(const std::vector<uint32_t>& tokens_from) {
  for (size_t rank = 0; rank < job_.parts.size(); ++rank) {
    MovePart& part = job_.parts[rank];
    if (!part.local && !part.mapped) part.recv_capacity = told_.parts[rank].recv_capacity;
  }
  return rows_->TakeNumbers(tokens_from);
}

void DirectRows::TakePlace(uint64_t place) {
  place_ = place;
  peers_.Publish(place, job_);
}

bool DirectRows::HasRegions() {
  unreadable_ = peers_.TakeRegions(place_, group_, job_, regions_);
  return !absl::IsUnavailable(unreadable_);
}

// Members of other nodes wait for what is sent, also where a neighbour's region cannot be read: they get it, and this member
// alone says what is wrong.
MoveSteps DirectRows::Steps(const MovePlaces& places, const DeviceShape& device) {
  if (!unreadable_.ok()) {
    if (peers_.all_near()) return {};
    for (MovePart& part : job_.parts) part.mapped = false;
  }
  MovePlaces all = places;
  all.peer_regions = regions_;
  return rows_->Steps(all, device);
}

absl::Status DirectRows::Outcome(const uint8_t* host) const {
  return unreadable_.ok() ? rows_->Outcome(host) : unreadable_;
}

}  // namespace epd::cuda
