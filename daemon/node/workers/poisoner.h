// Answers for a worker that is dead: ends every open submission of a session's slots with what was
// decided, or with why it is dead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "proto/epd/v1/records_view.h"
#include "proto/epd/v1/slots_view.h"

namespace epd {

// What the records say about a claimed submission, copied out of shared memory.
struct RecordedOperation {
  uint64_t op_id = 0;
  shm::Outcome outcome = shm::Outcome::kUndecided;
  uint32_t code = 0;
  std::string cause;
};

// The answer for one open submission.
struct PoisonAnswer {
  uint32_t code = 0;    // absl::StatusCode; 0: the operation was decided good.
  std::string message;  // Empty when code is 0.
};

// Decides the answer for `word`; nothing when none is open. `claim` is SlotRecord::claim,
// `operation` the record of SlotRecord::op_id if it is there. A submission that nobody claimed, that the
// record does not know, or whose operation is undecided ends with `cause`. Only a
// publish of an operation decided good ends well: an announce was not answered, so its rank never
// published; a pulled says nothing that anybody still needs.
std::optional<PoisonAnswer> DecidePoison(uint64_t word, uint64_t claim,
                                         const std::optional<RecordedOperation>& operation,
                                         const absl::Status& cause);

// Why an undecided submission ends, with the whole message; the request is a copy, and as hostile as its client.
using PoisonCause = std::function<absl::Status(const shm::SlotRequest&)>;

// Marks every undecided operation as failed with `cause`. Once, after the worker was
// reaped and before the first PoisonGroup, so that all ranks of an operation get one outcome.
void FailUndecided(const shm::RecordsView& records, const absl::Status& cause);

struct Poisoned {
  uint64_t num_looked = 0;  // Slots that have ever been armed, one at least of a group.
  uint64_t num_ended = 0;   // Submissions.
  std::map<uint64_t, uint64_t> failed_calls;  // By group id, as the requests say.
};

// What a session has for the worker.
struct PoisonTarget {
  SessionId session;
  shm::SlotsView slots;
  uint32_t record_index = 0;  // Of its block in the records.
};

// Ends every open submission of the group of slots, and wakes their waiters. May be repeated: a client that has not heard yet
// may arm again.
void PoisonGroup(const PoisonTarget& target, uint32_t group, const shm::RecordsView& records,
                 const PoisonCause& cause, Poisoned& poisoned);

// Sets the session's `ended` word and wakes its waiters; before the worker hears of the end,
// because from then on peers' regions may be given to others.
void MarkEnded(const shm::SlotsView& slots);

}  // namespace epd
