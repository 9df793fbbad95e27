// One operation's rows on one member of a communicator: what is read to know all sizes, what goes into the
// stream, and what came of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/backend/cuda/members/known_counts.h"
#include "daemon/backend/cuda/moves/move_steps.h"
#include "kernels/cuda/launch.h"

namespace epd::cuda {

class CudaArenas;

class MemberRows {
 public:
  virtual ~MemberRows() = default;

  // What the sizes follow from, to `places.host`; no room: they are known already.
  virtual MoveRoom read_room() const = 0;
  virtual StreamSteps Read(const MovePlaces& places, const DeviceShape& device) const = 0;
  // It is there.
  //   DATA_LOSS         a plan is corrupt, or two plans differ
  //   INVALID_ARGUMENT  a plan cannot be served
  virtual absl::Status TakeRead(const uint8_t* host) = 0;
  // In place of Read and TakeRead: what another operation of the same plan has read. False: it cannot go by that, and
  // reads.
  virtual bool TakeKnown(const PlanSizes&) { return false; }
  // What all members must have alike, once it was read.
  virtual const std::vector<int32_t>& counts() const = 0;
  // What the others are to be told, once it was read (PreparedMove).
  virtual const std::vector<uint32_t>& tokens_to() const {
    static const std::vector<uint32_t> none;
    return none;
  }
  virtual const MoveRoom& room() const = 0;

  // Before it is prepared: whether what it reads of other members is within reach.
  //   FAILED_PRECONDITION  not yet; ask again
  //   anything else        it will not be
  virtual absl::Status Reach(CudaArenas&) { return absl::OkStatus(); }
  // It has this turn; then, when the turn comes: whether all members have said what Steps needs of them.
  virtual void TakePlace(uint64_t) {}
  virtual bool HasRegions() { return true; }

  // Every member is ready, and the job has the recv capacities of all ranks now; `tokens_from`: as IssuePlace has it. All
  // members come to the same result.
  virtual absl::Status TakeNumbers(const std::vector<uint32_t>& tokens_from) = 0;
  // Fills host memory of the places and says what to put into the stream.
  virtual MoveSteps Steps(const MovePlaces& places, const DeviceShape& device) = 0;
  // Once that is complete. Errors as Backend::StartMove.
  virtual absl::Status Outcome(const uint8_t* host) const = 0;
};

}  // namespace epd::cuda
