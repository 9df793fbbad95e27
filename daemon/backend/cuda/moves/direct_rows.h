// Rows out of the memory of the node's other workers, as far as they let this one read it, and else as native_rows.h has it
// (row_moves.h, direct_link.h, mixed_link.h).
#pragma once

#include <memory>
#include <vector>

#include "daemon/backend/cuda/members/direct_peers.h"
#include "daemon/backend/cuda/members/member_rows.h"
#include "daemon/backend/cuda/moves/native_rows.h"

namespace epd::cuda {

class DirectRows : public MemberRows {
 public:
  // `group`, `job` and `peers` are borrowed.
  //   INVALID_ARGUMENT  a rank's sizes do not fit its region or the group
  static absl::StatusOr<std::unique_ptr<MemberRows>> Create(const MoveGroup& group,
                                                            const MoveJob& job, DirectPeers& peers);

  MoveRoom read_room() const override { return rows_->read_room(); }
  StreamSteps Read(const MovePlaces& places, const DeviceShape& device) const override {
    return rows_->Read(places, device);
  }
  absl::Status TakeRead(const uint8_t* host) override { return rows_->TakeRead(host); }
  bool TakeKnown(const PlanSizes& known) override { return rows_->TakeKnown(known); }
  const std::vector<int32_t>& counts() const override { return rows_->counts(); }
  const std::vector<uint32_t>& tokens_to() const override { return rows_->tokens_to(); }
  const MoveRoom& room() const override { return rows_->room(); }
  absl::Status TakeNumbers(const std::vector<uint32_t>& tokens_from) override;

  absl::Status Reach(CudaArenas& arenas) override { return peers_.Reach(group_, job_, arenas); }
  void TakePlace(uint64_t place) override;
  bool HasRegions() override;
  MoveSteps Steps(const MovePlaces& places, const DeviceShape& device) override;
  absl::Status Outcome(const uint8_t* host) const override;

 private:
  DirectRows(const MoveGroup& group, const MoveJob& job, DirectPeers& peers)
      : group_(group), told_(job), job_(job), peers_(peers) {}

  const MoveGroup& group_;
  const MoveJob& told_;
  MoveJob job_;  // With what the other members say of the ranks that are mapped.
  DirectPeers& peers_;
  std::unique_ptr<MemberRows> rows_;  // Of `job_`.
  uint64_t place_ = 0;
  std::vector<DevicePointer> regions_;  // [R]
  absl::Status unreadable_;
};

}  // namespace epd::cuda
