// One operation of a tenant: what each rank has said and done, and how far it is.
//
//   kGathering --all announced--> kQueued --staging granted--> kAdmitted --all published-->
//     client executor:            kGood --all pulled--> (closed)
//     worker executor:  kMoving --rows moved--> kGood --all pulled--> (closed)
//       by a communicator:  kMoving once the own ranks have published, then kAdmitted again
//       several nodes:  kMoving once the own ranks have published and all rows are here, then kAdmitted again
//   all rows in eager buffers:  kGathering --all announced--> kGood, without a region
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
#include "daemon/worker/engine/execution_history.h"
#include "daemon/worker/engine/submission.h"
#include "daemon/worker/staging/staging_pool.h"
#include "proto/epd/v1/segment.h"

namespace epd {

struct Tenant;

enum class Phase { kGathering, kQueued, kAdmitted, kMoving, kGood, kFailed };

// Where one rank is in an operation. It may touch the region in kCopying and kReading only: between
// a good answer and its next use.
enum class PartState {
  kAbsent,     // Has not announced.
  kAnnounced,  // Waits for its announce to be answered.
  kCopying,    // Writes its stage.
  kPublished,  // Waits for its publish to be answered.
  kReading,    // Reads peers' stages, or its output.
  kPulled,     // Waits for its pulled to be answered; touches nothing.
  kDone,       // Was told the end, or its session is dead.
};

// "prepare", "dispatch", ...; "kind 9" for an unknown one.
std::string KindName(shm::Kind kind);

// The numbers of an announce, copied out of client memory.
struct Announcement {
  uint32_t dtype = 0;
  uint32_t has_weights = 0;
  uint32_t top_k = 0;
  uint32_t alignment = 0;
  uint64_t row_bytes = 0;
  uint64_t plan_id = 0;
  uint64_t spec_hash = 0;
  shm::Kind kind = shm::Kind::kPrepare;
  uint64_t num_tokens = 0;
  uint64_t recv_capacity = 0;
  uint64_t demand = 0;
  uint64_t stage_bytes = 0;
  uint64_t out_bytes = 0;
  uint64_t plan_bytes = 0;  // Of the plan copy in front of the stage; stays on its node.
  std::optional<uint8_t> eager_buffer = {};  // The rows stand there already.
  bool from_stream = false;                  // A GPU's stream calls, and not a CPU.
};
Announcement CopyAnnouncement(const shm::SlotRequest& request);

// Identity: calls of all ranks with the same key are one operation.
struct OperationKey {
  Execution execution;
  uint32_t ordinal = 0;
  uint32_t occurrence = 0;
  bool named = false;

  friend auto operator<=>(const OperationKey&, const OperationKey&) = default;
};

// "execution=3 ordinal=1 occurrence=0".
std::string Describe(const OperationKey& key);

// The place of an operation among those that wait for staging, the same on all nodes.
struct Ticket {
  uint64_t clock = 0;
  Incarnation leader;

  friend auto operator<=>(const Ticket&, const Ticket&) = default;
};

// How far an operation of several nodes is; peers.h. The sets are the leader's.
struct OperationPeers {
  uint64_t number = 0;  // The leader's; 0 until it asked for regions.
  std::set<Incarnation> granted;
  std::set<Incarnation> published;
  std::set<Rank> landed;  // Ranks of other nodes whose rows are here.
  bool revoke_asked = false;
  bool reported = false;                     // This worker has said kPublished.
  bool wire_open = false;                    // Rows may come and go.
  std::map<Incarnation, uint64_t> prepared;  // The digests of those who are; the leader's.
  bool has_place = false;                    // It takes part in the communicator, or was cancelled.
};

struct Part {
  PartState state = PartState::kAbsent;
  Submission submission;  // Open in kAnnounced, kPublished and kPulled.
  Announcement said;      // From kAnnounced on.
  // Of a call in a GPU's stream: what is wrong with its announce. Ranks in streams come to every call, in one
  // order, so it is told once all are there; told earlier, it would leave them at different calls.
  absl::Status problem;
  // Of a call in a GPU's stream: the slot of its site's announce.
  std::optional<uint32_t> site = {};
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
  bool in_stream_region = false;  // Called from streams: its region is the tenant's eager buffer.
  uint64_t staging_bytes = 0;     // Of one arena, once all have announced.
  bool moving = false;            // The worker executor touches the region.
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
