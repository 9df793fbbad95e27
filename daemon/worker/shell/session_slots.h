// One session's op slots as the worker uses them: take armed uses, answer them, sleep and be woken.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/shell/mapping.h"
#include "daemon/worker/shell/outcome_records.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// The segment is client memory: a client may change any word at any time. It can confuse its own
// uses by that and nothing else. Exec thread only.
class SessionSlots {
 public:
  // `records` outlives this.
  //   DATA_LOSS         not a slots segment of this version, or another session's
  //   INVALID_ARGUMENT  record_index is out of range
  static absl::StatusOr<SessionSlots> Open(SessionId session, uint32_t record_index,
                                           const UniqueFd& segment, UniqueFd wakeup,
                                           OutcomeRecords& records);

  using Taker = std::function<void(const Submission&, const shm::SlotRequest&)>;
  // Claims every armed use that is marked, or whose slot a stream arms, and hands a private copy of each request to `take`.
  // Returns the number of uses taken.
  int TakeArmed(const Taker& take);
  // The same without the marks, for uses armed before this worker knew the session.
  int TakeAll(const Taker& take);

  // Whether a GPU's stream may arm slots: it rings nothing, so somebody must look.
  bool has_streams() const;

  // Writes the reply, ends the use if it is still this claim's, and wakes its waiter.
  void Answer(const AnswerSubmission& answer);
  // Writes the eager buffers of a use that is to be answered.
  void Tell(const NameEagerBuffers& eager);
  void Link(const LinkSubmission& link) {
    records_->Link(record_index_, link.submission.slot, link.operation);
  }

  // Ends every open use with `status`: this worker stops.
  void AbortOpenSubmissions(const absl::Status& status);

  // Before sleeping: after SetAsleep(true) of all sessions, scan once more.
  void SetAsleep(bool asleep);
  // Each ring is an edge; the count is never read.
  int wakeup_fd() const { return wakeup_.get(); }

 private:
  SessionSlots() = default;
  shm::SlotsSegment& segment() const { return *static_cast<shm::SlotsSegment*>(mapping_.data()); }
  int TakeStreamed(const Taker& take);
  void WriteReason(uint32_t index, const absl::Status& status);
  bool TakeSlot(uint32_t index, const Taker& take);
  static void Wake(shm::Slot& slot);

  SessionId session_;
  uint32_t record_index_ = 0;
  Mapping mapping_;
  UniqueFd wakeup_;
  OutcomeRecords* records_ = nullptr;
  std::array<uint32_t, shm::kSlotsPerSession> last_claim_ = {};
};

}  // namespace epd
