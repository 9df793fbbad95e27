// One call site of a GPU's stream, as the engine sees it: three slots, one for each step, armed with
// constants at every use.
//
//   announce --claimed--> publish --claimed--> pulled --claimed and answered--> announce
//
// The stream waits for the answers of announce and publish and goes on behind pulled, so the next
// announce may be claimed before pulled is: then it is held. Answered, it would let the stream arm
// pulled while the last one is not claimed, and two uses would become one. A site's first announce at a
// new worker may stand before a pulled of the worker before, of which nothing is known here: a worker
// claims all armed slots in each pass and answers after it, so that pulled is claimed before the
// stream can arm the next.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "daemon/worker/engine/submission.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// The slot of its announces names a site.
using StreamSiteKey = std::pair<SessionId, uint32_t>;

struct StreamSite {
  struct Held {
    Submission submission;
    shm::SlotRequest request;
  };
  shm::Step expects = shm::Step::kStreamAnnounce;  // The step to be claimed next.
  OperationId operation;     // In which this use is a part that is not over; else none.
  absl::Status cause;        // Of a use that has failed: what its publish is answered with.
  std::optional<Held> held;  // The next use's announce.
};

}  // namespace epd
