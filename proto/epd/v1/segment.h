// The shared-memory ABI between a client, epd and epd-worker: the slots segment of a session and the outcome
// records of a node.
//
// Two segments, both memfds owned by epd and sealed against shrinking and growing:
//   slots    one per session; epd, the worker and that one client map it read-write. Everything in it except
//            `word` transitions is advice from the client's side: whoever reads a request copies it first and
//            trusts nothing in it.
//   records  one per node; epd and the worker map it, no client. It says which submission a claim belongs to and
//            what was decided, so that epd can answer for a worker that is dead.
//
// The cycle of a slot's word is in slot_word.h; the steps of an operation are `Step` below. Readers find the areas of
// a slots segment by its header (slots_view.h); tests/unit/proto/segment_layout_test.cc fixes every offset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "proto/epd/v1/limits.h"

namespace epd::shm {

inline constexpr uint64_t kSlotsMagic = 0x31544f4c53445045;    // "EPDSLOT1", little endian.
inline constexpr uint64_t kRecordsMagic = 0x3143455253445045;  // "EPDSREC1", little endian.
// Of both segments. A new area, or more slots, is no new version: readers go by the header.
inline constexpr uint32_t kSegmentVersion = 2;
// Of a session whose client takes no more; epd's setting slots_per_session gives others up to limits::kMaxOpSlots.
inline constexpr uint32_t kSlotsPerSession = limits::kMinOpSlots;
inline constexpr uint32_t kSlotsOfGroup = 64;  // Their marks are one word.
static_assert(limits::kMaxOpSlots <= kSlotsOfGroup * 64 && kSlotsPerSession % kSlotsOfGroup == 0);
inline constexpr uint32_t kMaxSessions = 1024;    // Blocks in the records segment.
inline constexpr uint32_t kMaxOperations = 8192;  // Open operations of a node.
inline constexpr uint32_t kMessageBytes = 2560;   // An error text with its terminating zero.
// Eager buffers are places in the own arena where the rows of a call may stand before the operation is admitted, in as many in a
// row as they need.
inline constexpr uint64_t kEagerBufferBytes = 256 << 10;
// An arena has few, and rows stand in one of them alone, unless all its set's clients say kReadsManyEagerBuffers.
inline constexpr uint32_t kFewEagerBuffers = 8;
inline constexpr uint32_t kMaxEagerBuffers = 160;
inline constexpr uint64_t kReadsManyEagerBuffers = 1;
inline constexpr uint32_t kMaxAreas = 64;         // Of a slots segment, besides its header.
inline constexpr uint32_t kPlanHeaderBytes = 96;  // sizeof(PlanHeader), kernels/routing_plan.h.

enum class Step : uint32_t {
  kAnnounce = 1,  // Answered when every rank has announced and the operation is admitted.
  // My rows are staged. Answered when all are (client executor) or my output is (worker executor).
  kPublish = 2,
  // I have read what I need. Answered when the regions are free; nobody waits for it.
  kPulled = 3,
  // Announce and publish in one: my rows stand in an eager buffer of my arena. If every rank says so the answer is that
  // of a publish (SlotEagerBuffers::good); else it is that of an announce, and the rows are to be staged once more.
  // Only after a reply has told where the eager buffers are; client executor.
  kAnnounceStaged = 4,
  // The three steps of a stream site, each in a slot of its own that a GPU's stream arms (slot_stream.h). The request
  // is the same at every submission, but for the plan's id, the demand and the reports, which kernels write before the
  // stream arms: which call it is, the worker counts. A site's next announce is not answered before its `pulled` was
  // claimed and answered. The operation's region is the stream region of the tenant.
  kStreamAnnounce = 5,
  kStreamPublish = 6,
  kStreamPulled = 7,
};

constexpr bool IsAnnounce(Step step) {
  return step == Step::kAnnounce || step == Step::kAnnounceStaged || step == Step::kStreamAnnounce;
}

constexpr bool IsStreamStep(Step step) {
  return step == Step::kStreamAnnounce || step == Step::kStreamPublish ||
         step == Step::kStreamPulled;
}

enum class Kind : uint32_t {
  kPrepare = 1,
  kDispatch = 2,
  kCombine = 3,
  kDispatchBackward = 4,
  kCombineBackward = 5,
};

// What the three announces say beside SlotRequest's own fields.
struct AnnounceRequest {
  uint64_t demand;  // Slots that this rank would need, from the plan; 0 for prepare.
  union {
    // kStreamAnnounce of a prepare: what the kernel that counted the routes reports, all ones where they are good.
    uint64_t route_report;
    uint64_t client;  // kAnnounce, kAnnounceStaged: kReadsManyEagerBuffers; 0 of earlier releases.
  };
  uint32_t eager_buffer;  // kAnnounceStaged: the first of those where the rows stand.
  // kAnnounceStaged: as which number the rank has published the call for itself (direct_area.h); 0: it has not.
  uint32_t published;
  // Zero-terminated or cut. Without has_name: where in its program the call stands, for people.
  char name[256];
};

// What kPublish and kPulled say.
struct OperationRequest {
  uint64_t op_id;  // As in the announce's reply.
};

// What kStreamPublish and kStreamPulled say.
struct StreamRequest {
  uint32_t announce_slot;  // Of the same site: names the site.
  uint32_t reserved;
  // kStreamPublish, client executor: what the kernels that checked the plan and moved the rows report, all ones where
  // all is good, and the first bytes of the plan that they read.
  uint64_t move_report;
  uint8_t plan_header[kPlanHeaderBytes];
};

// What a call says. Written by the client before it arms the slot. The steps after an announce repeat what it said.
struct SlotRequest {
  Step step;  // Which member of the union below holds.
  Kind kind;
  uint64_t group_id;
  uint64_t epoch;
  uint64_t formation;
  uint32_t rank;
  // Non-zero: what this rank brings is bad; absl::StatusCode, its text in `error`.
  uint32_t error_code;

  // Identity (DESIGN: matching). Operations of all ranks with equal identity are one operation.
  uint8_t program[16];  // Digest of the executable, or of the name when has_name is set.
  uint64_t execution;   // Raw number since the Join, per (rank, program).
  uint32_t ordinal;     // Of the call site in its executable.
  uint32_t occurrence;  // Of this site within the execution.
  uint32_t has_name;

  // Fingerprint: must be equal on all ranks, as must `kind`.
  uint32_t dtype;  // epd_dtype, of the rows; 0 for prepare.
  uint32_t has_weights;
  uint32_t top_k;
  uint32_t alignment;
  // May differ. Worker executor: of the plan copy at the start of the region; region_layout.h.
  uint32_t plan_bytes;
  uint64_t row_bytes;
  uint64_t plan_id;  // Operation id of the prepare; 0 for prepare.
  uint64_t spec_hash;

  // May differ between ranks.
  uint64_t num_tokens;
  uint64_t recv_capacity;  // Slots of this call's receive buffer (dispatch).
  uint64_t stage_bytes;    // What this rank will stage.
  uint64_t out_bytes;      // Worker executor: what the worker will put out for this rank.

  union {
    AnnounceRequest announce;    // kAnnounce, kAnnounceStaged, kStreamAnnounce.
    OperationRequest operation;  // kPublish, kPulled.
    StreamRequest stream;        // kStreamPublish, kStreamPulled.
  };
  char error[472];  // Zero-terminated or cut; where error_code is set.
};
static_assert(sizeof(SlotRequest) == 904);

// What the worker says. Written before it answers the slot.
struct SlotReply {
  uint64_t op_id;          // 0: the submission belongs to no operation.
  uint64_t plan_id;        // Of a prepare: what its plan is named after on all nodes. 0: op_id.
  uint64_t region_offset;  // In every arena of the set.
  uint64_t region_bytes;   // Of one arena; the largest stage of any rank, rounded up to pages.
  uint64_t out_offset;     // Worker executor: where this rank's output lies in its own arena.
  uint64_t out_bytes;
  char message[kMessageBytes];  // Zero-terminated, when the answer is an error.
};

// What the worker says about eager buffers, beside a good reply. The client clears `good` before it arms.
struct SlotEagerBuffers {
  uint64_t offset;  // Of the set's eager buffers in every arena; SlotsHeader::eager_buffers.
  uint32_t
      num_eager_buffers;  // 0: the set has none. Over kFewEagerBuffers: rows of a call may stand in several.
  // Of an announce staged: 1 if the outcome is good; each rank's rows stand in its eager buffer.
  uint32_t good;
  uint8_t eager_buffer_of_rank[limits::kEagerRanks];  // The first.
};

// What the plan of a stream's prepare is named after, for the kernels that build it. Written before a good answer to
// the announce, which is always the worker's own.
struct PlanName {
  uint64_t group_id;
  uint64_t epoch;
  uint64_t plan_id;
};

// What the worker says about direct submissions (direct_area.h), beside a good reply. The client clears it before it
// arms.
struct SlotDirect {
  uint32_t generation;  // In which the program's next calls may be published; 0: in none.
  // Of a published call: 1 if every rank has published it. The reply says nothing else then.
  uint32_t met;
  uint64_t execution;  // Of this call, as the worker counts it: the same on all ranks.
};

struct alignas(64) Slot {
  std::atomic<uint64_t> word;  // slot_word.h.
  // Client: I sleep on the futex of `word`'s upper half. Worker: wake only then.
  std::atomic<uint32_t> sleeping;
  // Of a slot that a stream arms: the code of the first failed submission since the client took the last one, its text
  // in reply.message. Replays run no code of the client's; it looks here when it has a chance to.
  std::atomic<uint32_t> failed;
  uint32_t reserved[12];
  SlotRequest request;
  SlotReply reply;
  SlotEagerBuffers eager;
  PlanName plan_name;
  SlotDirect direct;
  uint8_t padding[4096 - 64 - sizeof(SlotRequest) - sizeof(SlotReply) - sizeof(SlotEagerBuffers) -
                  sizeof(PlanName) - sizeof(SlotDirect)];
};
static_assert(sizeof(Slot) == 4096);

// Element i of an area begins at offset + i * stride; offsets are from the start of the segment where nothing else is
// said. Later versions add areas behind these; a reader passes over those that it does not know.
enum class AreaId : uint32_t {
  kSlots = 0,  // Slot.
  kWords = 1,  // The slots' words.
  // From SlotEagerBuffers::offset, in every arena. The worker may give fewer, or more to clients that read rows of several;
  // earlier releases' rows stand in buffer i for slot i.
  kEagerBuffers = 2,
  // Where these three are not, SlotsHeader::armed and ::streamed are the marks, and all slots may be in use.
  kArmed = 3,     // Marks, 64 slots a word; see SlotsHeader::armed.
  kStreamed = 4,  // See SlotsHeader::streamed.
  // One word, of the client: bit g is set for good before one of the slots [64 g, 64 g + 64) is armed for the first
  // time. Nobody looks at the others, nor touches their pages. A hint, as the marks are: a client that does not
  // set a bit keeps its own calls from being seen and nothing else.
  kUsedGroups = 5,
};

struct Area {
  uint64_t offset;
  uint32_t stride;
  uint32_t count;
};

// `magic` and `version` stand here in every version.
struct alignas(4096) SlotsHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t segment_bytes;
  uint64_t session_id;
  uint64_t incarnation;
  uint32_t num_areas;
  uint32_t reserved;

  // epd: the session has ended; whatever was read from peers' arenas since is void. Futex word.
  alignas(64) std::atomic<uint32_t> ended;
  // Worker: ring the eventfd after arming (set before a last scan; both sides fence, see slot_word.h).
  alignas(64) std::atomic<uint32_t> asleep;
  // Client: bit per slot, set after arming; the worker takes whole words. A hint only: the truth is in the slot.
  alignas(64) std::atomic<uint64_t> armed[kSlotsPerSession / 64];
  // Client: bit per slot that a GPU's stream arms. A stream marks nothing and rings nothing: while a bit is set, the
  // worker looks at the slot's word again and again.
  alignas(64) std::atomic<uint64_t> streamed[kSlotsPerSession / 64];
  alignas(64) Area areas[kMaxAreas];  // By AreaId.
  // The areas of these names where there are more than kSlotsPerSession slots, and where the client says which it uses.
  alignas(64) std::atomic<uint64_t> used_groups;
  alignas(64) std::atomic<uint64_t> armed_of_many[limits::kMaxOpSlots / kSlotsOfGroup];
  alignas(64) std::atomic<uint64_t> streamed_of_many[limits::kMaxOpSlots / kSlotsOfGroup];
};
static_assert(sizeof(SlotsHeader) == 4096);

// As a segment is laid out for a client that takes no more slots than these: each word stands in its slot.
struct SlotsSegment {
  SlotsHeader header;
  Slot slots[kSlotsPerSession];
};
static_assert(sizeof(SlotsSegment) == 4096 * (1 + kSlotsPerSession));

// ---- outcome records ----

enum class Outcome : uint32_t { kUndecided = 0, kGood = 1, kFailed = 2 };

// Which submission a claim id stands for. Written before the claim, so that every {id, 0} has its record.
struct SlotRecord {
  std::atomic<uint64_t> claim;  // (step << 32) | id.
  std::atomic<uint64_t> op_id;  // 0: not known yet.
};

struct alignas(64) OperationRecord {
  std::atomic<uint64_t> op_id;  // 0: free. Lies at index op_id % kMaxOperations.
  std::atomic<uint32_t> outcome;
  uint32_t code;  // absl::StatusCode of the cause.
  char cause[944];
};
static_assert(sizeof(OperationRecord) == 960);

struct alignas(4096) RecordsHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t segment_bytes;
  uint32_t max_sessions;
  uint32_t slots_per_session;
  uint32_t max_operations;
  // Whose memory the worker's thread touches at this moment: a uid + 1; 0: nobody's, or its worker does not say it.
  std::atomic<uint64_t> touched;
};

// As it is laid out for slots_per_session = 256; for others the blocks of `slots` are longer (records_view.h).
struct RecordsSegment {
  RecordsHeader header;
  SlotRecord slots[kMaxSessions][kSlotsPerSession];
  OperationRecord operations[kMaxOperations];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

}  // namespace epd::shm
