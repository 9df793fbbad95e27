// The call sites of GPUs' streams. Each one has three slots, one for each step, armed with constants at
// every call.
//
//   announce --claimed--> publish --claimed--> pulled --claimed and answered--> announce
//
// The stream waits for the answers of announce and publish and goes on behind pulled, so the next
// announce may be claimed before pulled is: then it is held. Answered, it would let the stream arm
// pulled while the last one is not claimed, and two calls would become one. A site's first announce at a
// new worker may stand before a pulled of the worker before, of which nothing is known here: a site's
// slots are of one group of 64, and a worker claims what is armed of a group in one pass and answers after it, so that pulled is
// claimed before the stream can arm the next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/worker/engine/submission.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// The slot of its announces names a site.
using StreamSiteKey = std::pair<SessionId, uint32_t>;

// Knows for each site which step it expects next, in which operation its call takes part, why that failed, and the
// announce that came too early. Not thread-safe.
class StreamSites {
 public:
  struct Held {
    Submission submission;
    shm::SlotRequest request;
  };
  struct Announced {
    bool begins = false;  // A call begins now; else its announce is held.
    std::optional<Held>
        written_over;  // Held until now: its client wrote over the word, and it is to be refused.
  };
  Announced TakeAnnounce(const Submission& submission, const shm::SlotRequest& request);

  struct Published {
    OperationId operation;  // None: the call has failed.
    absl::Status cause;     // OK: it was an earlier worker's.
  };
  Published TakePublish(const StreamSiteKey& key);

  // In which operation the site's next step is pulled; none: the call has failed. Null: it expects another step.
  std::optional<OperationId> ExpectsPulled(const StreamSiteKey& key);
  void TakePulled(const StreamSiteKey& key);

  // The call of the site, which has begun, takes part in `operation`.
  void Join(const StreamSiteKey& key, OperationId operation);
  // Its part in the operation is over.
  void Leave(const StreamSiteKey& key);
  // A stream arms all steps of a call, whatever became of it: the later ones hear the same. Of a submission that is
  // no site's announce nothing is kept.
  void NoteCause(const Submission& submission, const absl::Status& cause);
  void ForgetSession(SessionId session);

  // Whether TakeHeld has some.
  bool has_freed() const { return !freed_.empty(); }
  // The announces that were held and begin now, in the order in which their sites became free.
  std::vector<Held> TakeHeld();
  // All that are held; they begin no more.
  std::vector<Held> TakeAllHeld();

 private:
  struct Site {
    shm::Step expects = shm::Step::kStreamAnnounce;  // The step to be claimed next.
    OperationId operation;       // In which this call is a part that is not over.
    absl::Status cause;          // Of a call that has failed.
    std::unique_ptr<Held> held;  // The next call's announce; null mostly, and a kilobyte.
  };
  static void Begin(Site& site);
  void NoteIfFree(const StreamSiteKey& key, const Site& site);

  std::map<StreamSiteKey, Site> sites_;
  std::vector<StreamSiteKey> freed_;  // With an announce to be taken.
};

}  // namespace epd
