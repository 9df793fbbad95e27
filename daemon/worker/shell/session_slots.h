// One session's op slots as the worker uses them: take armed submissions, answer them, sleep and be woken.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "daemon/shared_memory/page_guard.h"
#include "daemon/worker/engine/effects.h"
#include "daemon/worker/shell/mapping.h"
#include "daemon/worker/shell/outcome_records.h"
#include "proto/epd/v1/slots_view.h"

namespace epd {

// The segment is client memory: a client may change any word at any time. It can confuse its own
// submissions by that and nothing else. Exec thread only.
class SessionSlots {
 public:
  struct Options {
    SessionId session;
    uint32_t uid = 0;
    uint32_t record_index = 0;
    // GPUs' streams may arm slots; else what the segment says of that is passed over.
    bool has_device = false;
  };
  // `records` outlives this.
  //   DATA_LOSS         not a slots segment, or another session's
  //   UNIMPLEMENTED     a slots segment of a version that this worker does not read
  //   INVALID_ARGUMENT  record_index is out of range
  //   DATA_LOSS         more slots than the records have room for
  static absl::StatusOr<SessionSlots> Open(const Options& options, const UniqueFd& segment,
                                           UniqueFd wakeup, OutcomeRecords& records);

  uint32_t num_slots() const { return view_.num_slots(); }

  using Taker = std::function<void(const Submission&, const shm::SlotRequest&)>;
  // Claims armed submissions that are marked, or whose slots streams arm, and hands a private copy of each request to `take`:
  // all, or those of whole groups of 64 slots until it has taken `enough`; then the next call goes on behind them. Returns
  // how many it took.
  int TakeArmed(int enough, const Taker& take);
  // Marks those that were armed before this worker knew the session.
  void MarkArmed();
  // Why this session cannot be served any longer, said once: there is no memory for a slot that it has armed, or for one that
  // was there already. Nothing is taken from it then. OK otherwise.
  absl::Status TakeTrouble();

  // Whether a GPU's stream may arm slots: it rings nothing, so somebody must look.
  bool has_streams() const;
  // The same of one group's slots, as the client's memory says.
  bool has_streams_of(GroupId group);

  // Writes the reply, ends the submission if it is still this claim's, and wakes its waiter.
  void Answer(const AnswerSubmission& answer);
  // Writes the eager buffers of a submission that is to be answered.
  void Tell(const NameEagerBuffers& eager);
  void Link(const LinkSubmission& link) {
    records_->Link(record_index_, link.submission.slot, link.operation);
  }

  // Ends every open submission with `status`: this worker stops.
  void AbortOpenSubmissions(const absl::Status& status);

  // Before sleeping: after SetAsleep(true) of all sessions, scan once more.
  void SetAsleep(bool asleep);
  // Each ring is an edge; the count is never read.
  int wakeup_fd() const { return wakeup_.get(); }

 private:
  SessionSlots() = default;
  int TakeGroup(uint32_t group, const Taker& take);
  // Groups of 64 slots that may be in use and whose words this process can read.
  uint64_t UsedGroups();
  template <typename Do>
  void ForEachUsedSlot(Do act);
  // Whether a slot and its record can be touched. A client can arm a slot without ever having written to it.
  bool CanTouch(uint32_t index);
  // Of an attempt to get pages. Whether it did.
  bool Note(const absl::Status& made);
  void WriteReason(uint32_t index, const absl::Status& status);
  TouchedUser::Scope Touch() const { return {records_->touched_user(), uid_}; }
  bool TakeSlot(uint32_t index, const Taker& take);
  void Wake(uint32_t index);

  SessionId session_;
  uint32_t uid_ = 0;
  uint32_t record_index_ = 0;
  Mapping mapping_;
  PageGuard guard_;
  shm::SlotsView view_;
  UniqueFd wakeup_;
  OutcomeRecords* records_ = nullptr;
  uint32_t next_group_ = 0;         // Where the next pass begins.
  uint64_t groups_with_words_ = 0;  // A bit each: their words have pages.
  std::vector<bool> has_pages_;     // [num_slots]
  bool has_device_ = false;
  bool served_ = true;
  absl::Status trouble_;  // Why it is not, until it was told.
};

}  // namespace epd
