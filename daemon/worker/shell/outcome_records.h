// Writes the records from which epd answers for a dead worker. The order of the stores matters: the
// worker may die between any two.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/shell/mapping.h"
#include "daemon/worker/shell/touched_user.h"
#include "proto/epd/v1/records_view.h"

namespace epd {

class OutcomeRecords {
 public:
  //   DATA_LOSS  not a records segment of this version and size
  static absl::StatusOr<OutcomeRecords> Open(const UniqueFd& fd);

  // The most slots that a session may have.
  uint32_t num_slots() const { return view_.num_slots(); }

  TouchedUser touched_user() const { return TouchedUser(view_); }

  // Before the first access to a slot's record: beyond 256 slots its page comes into being as it is used.
  //   RESOURCE_EXHAUSTED  there is no memory for it
  absl::Status MakePageOf(uint32_t record_index, uint32_t slot) const;

  // The submission that `id` is about to claim; its operation is not known yet.
  void WriteClaim(uint32_t record_index, uint32_t slot, shm::Step step, uint32_t id);
  // The last claim id of a slot, an earlier worker's included; 0 for none.
  uint32_t LastClaim(uint32_t record_index, uint32_t slot) const;

  void Link(uint32_t record_index, uint32_t slot, OperationId operation);
  void OpenOperation(OperationId operation);
  void Decide(OperationId operation, const absl::Status& status);
  void CloseOperation(OperationId operation);

 private:
  shm::SlotRecord& Of(uint32_t record_index, uint32_t slot) const {
    return view_.block(record_index)[slot];
  }
  shm::OperationRecord& Of(OperationId operation) const { return view_.operation(operation.value); }

  Mapping mapping_;
  shm::RecordsView view_;
};

}  // namespace epd
