// One operation of a tenant: what each rank has said and done, and how far it is.
//
//   kGathering --all announced--> kQueued --staging granted--> kAdmitted --all published-->
//     client executor:            kGood --all pulled--> (closed)
//     worker executor:  kMoving --rows moved--> kGood --all pulled--> (closed)
//       by a communicator:  kMoving once the own ranks have published, then kAdmitted again
//       several nodes:  kMoving once the own ranks have published and all rows are here, then kAdmitted again
//   all rows in eager buffers:  kGathering --all announced--> kGood, without a region
//     several workers:  the same once all have all rows, and kGathering --leader's word--> kGood on the others
//   any but kGood --cause--> kFailed --nobody copies or reads--> (closed)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/announcement.h"
#include "daemon/worker/engine/prepared_rows.h"
#include "daemon/worker/engine/submission.h"
#include "daemon/worker/staging/staging_pool.h"
#include "proto/epd/v1/segment.h"

namespace epd {

struct Tenant;

enum class Phase { kGathering, kQueued, kAdmitted, kMoving, kGood, kFailed };

// Where one rank is in an operation. It may touch the region in kCopying and kReading only: between
// a good answer and its next submission.
enum class PartState {
  kAbsent,     // Has not announced.
  kAnnounced,  // Waits for its announce to be answered.
  kCopying,    // Writes its stage.
  kPublished,  // Waits for its publish to be answered.
  kReading,    // Reads peers' stages, or its output.
  kPulled,     // Waits for its pulled to be answered; touches nothing.
  kDone,       // Was told the end, or its session is dead.
};

// How far an operation of several workers is; peer_message.h. The sets are the leader's.
struct OperationPeers {
  uint64_t number = 0;  // The leader's; 0 until it asked for regions.
  std::set<Incarnation> granted;
  std::set<Incarnation> published;
  std::set<Rank> landed;  // Ranks of other nodes whose rows are here.
  bool revoke_asked = false;
  bool reported = false;     // This worker has said kPublished.
  bool wire_open = false;    // Rows may come and go.
  PreparedWorkers prepared;  // Those who are; the leader's.
  bool has_place = false;    // It takes part in the communicator, or was cancelled.
  // Rows that go without regions; rows_ahead.h.
  struct Ahead {
    bool begun = false;    // All ranks here have announced: whether rows go ahead is settled.
    bool sending = false;  // They are not under way yet.
    bool sent = false;
    // The eager buffer of other workers' ranks' arenas here.
    std::optional<uint8_t> landing = {};
    std::set<Rank> landed = {};            // Whose rows stand there.
    bool told_landed = false;              // This worker has said kRowsLanded.
    std::set<Incarnation> landed_at = {};  // Who has said so; the leader's.
  } ahead = {};
};

struct Part {
  PartState state = PartState::kAbsent;
  Submission submission;                        // Open in kAnnounced, kPublished and kPulled.
  Announcement said;                            // From kAnnounced on.
  absl::Time announced = absl::InfinitePast();  // As this worker heard of it.
  // What is wrong with the announce of a call in a GPU's stream. Ranks in streams come to every call, in one
  // order, so it is told once all are there; told earlier, it would leave them at different calls.
  absl::Status problem;
  // What a publish in a GPU's stream has told of a prepare's routes (proto/epd/v1/route_counts.h).
  std::vector<uint16_t> route_counts = {};
  // A call in a GPU's stream has the slot of its site's announce here.
  std::optional<uint32_t> site = {};
  uint32_t trace = 0;  // Its OperationTraces::Place.
};

struct Operation {
  OperationId id;
  Tenant* tenant = nullptr;
  OperationKey key;
  std::string name;  // For people: the static name, or the program's digest.
  Phase phase = Phase::kGathering;
  std::vector<Part> parts;  // [num_ranks]
  absl::Status cause;       // Of kFailed.
  std::optional<Region> region;
  bool in_stream_region = false;  // Called from streams: its region is the tenant's stream region.
  uint64_t staging_bytes = 0;     // Of one arena, once all have announced.
  bool moving = false;            // The worker executor touches the region.
  bool making_pages = false;      // The worker makes the region's pages.
  bool warned = false;            // Its absent ranks were named in the log.
  Ticket ticket;                  // From kQueued on.
  OperationPeers peers;

  absl::Time first_announce;
  absl::Time phase_since;
  absl::Time deadline = absl::InfiniteFuture();  // When this operation next needs a Tick.

  // Ranks whose part is in `state`.
  std::vector<Rank> In(PartState state) const;
  bool Any(PartState state) const;
  // Ranks that the current phase waits for.
  std::vector<Rank> WaitingFor() const;
  bool undecided() const { return phase != Phase::kGood && phase != Phase::kFailed; }
  // Somebody may read or write the region.
  bool held() const;
  // "dispatch name=x execution=3 ordinal=1 occurrence=0", for messages.
  std::string Describe() const;
};

}  // namespace epd
