// Rows by epd's own kernels and, where some are for members whose memory is not read, NCCL's sends and receives (row_moves.h,
// member_traffic.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/backend/cuda/members/member_rows.h"
#include "daemon/backend/cuda/members/member_traffic.h"
#include "daemon/backend/cuda/moves/row_moves.h"

namespace epd::cuda {

class NativeRows : public MemberRows {
 public:
  // `self`: this member. `group` and `job` are borrowed; of a job all whose ranks are here or mapped nothing is sent.
  //   INVALID_ARGUMENT  a rank's sizes do not fit its region or the group
  static absl::StatusOr<std::unique_ptr<MemberRows>> Create(const MoveGroup& group,
                                                            const MoveJob& job, int self);

  MoveRoom read_room() const override;
  StreamSteps Read(const MovePlaces& places, const DeviceShape& device) const override {
    return moves_->Read(places, device);
  }
  absl::Status TakeRead(const uint8_t* host) override;
  bool TakeKnown(const PlanSizes& known) override;
  const std::vector<int32_t>& counts() const override { return sizes_.counts; }
  const std::vector<uint32_t>& tokens_to() const override { return sizes_.tokens_to; }
  const MoveRoom& room() const override { return moves_->room(); }
  absl::Status TakeNumbers(const std::vector<uint32_t>& tokens_from) override;
  MoveSteps Steps(const MovePlaces& places, const DeviceShape& device) override {
    return moves_->Steps(places, device);
  }
  absl::Status Outcome(const uint8_t* host) const override;

 private:
  NativeRows(const MoveGroup& group, const MoveJob& job, int self)
      : group_(group), job_(job), self_(self), sends_(Sends(job)) {}
  static bool Sends(const MoveJob& job);
  absl::Status Plan();
  absl::Status PlanBy(PlanSizes sizes);
  absl::Status TakeTokens(const std::vector<uint32_t>& tokens_from, TrafficShape& shape) const;
  // Whether sizes follow from the plan's counts. Else that all plans have the same is seen when the kernels are done.
  bool needs_counts() const { return sends_ && job_.kind != shm::Kind::kPrepare; }

  const MoveGroup& group_;
  const MoveJob& job_;
  const int self_;
  const bool sends_;
  MemberTraffic traffic_;
  std::optional<RowMoves> moves_;
  PlanSizes sizes_;
};

}  // namespace epd::cuda
