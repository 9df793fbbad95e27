// Rows by epd's own kernels, out of the memory of the node's other workers (row_moves.h, direct_link.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/backend/cuda/members/direct_peers.h"
#include "daemon/backend/cuda/members/member_rows.h"
#include "daemon/backend/cuda/moves/row_moves.h"

namespace epd::cuda {

class DirectRows : public MemberRows {
 public:
  // `group` and `peers` are borrowed.
  //   INVALID_ARGUMENT  a rank's sizes do not fit its region or the group
  static absl::StatusOr<std::unique_ptr<MemberRows>> Create(const MoveGroup& group,
                                                            const MoveJob& job, DirectPeers& peers);

  // Nothing is sent, so no size follows from the counts. That all plans have the same is seen when the kernels are done.
  MoveRoom read_room() const override { return {}; }
  StreamSteps Read(const MovePlaces&, const DeviceShape&) const override { return {}; }
  absl::Status TakeRead(const uint8_t*) override { return absl::OkStatus(); }
  const std::vector<int32_t>& counts() const override { return no_counts_; }
  const MoveRoom& room() const override { return moves_->room(); }
  absl::Status TakeNumbers(const std::vector<uint32_t>&) override { return absl::OkStatus(); }

  absl::Status Reach(CudaArenas& arenas) override { return peers_.Reach(group_, job_, arenas); }
  void TakePlace(uint64_t place) override;
  bool HasRegions() override;
  MoveSteps Steps(const MovePlaces& places, const DeviceShape& device) override;
  absl::Status Outcome(const uint8_t* host) const override;

 private:
  DirectRows(const MoveGroup& group, const MoveJob& job, DirectPeers& peers)
      : group_(group), job_(job), peers_(peers) {}

  const MoveGroup& group_;
  MoveJob job_;  // With what the other members say of their ranks.
  DirectPeers& peers_;
  std::optional<RowMoves> moves_;
  uint64_t place_ = 0;
  std::vector<DevicePointer> regions_;  // [R]
  absl::Status unreadable_;
  const std::vector<int32_t> no_counts_;
};

}  // namespace epd::cuda
