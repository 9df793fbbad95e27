// Direct submissions: how the ranks of one node meet without the worker, and how the worker and epd stop that.
//
// Behind the staging of every arena lies one area. Its rank writes it, the worker maps it read-write, epd maps its
// first page, and peers map it read-only. `gate` is {generation, count}:
//
//   rank    publishes    {g, n-1} -> {g, n}   by compare-and-swap; record n % kDirectRecords says which call it is
//   worker  ends         {g, n}   -> {h, n}   for every rank of the set, before it answers any call with a failure
//   epd     ends         {g, n}   -> {g+1, n} for a worker that is dead, before it answers in its place
//
// A call carries the generation in which it was published. Its outcome is good if and only if every rank has
// published it in one generation. A publication is never taken back while its call is undecided, and after `ends` of
// one rank's gate that rank publishes nothing more in the generation: so once all gates have been ended the answer is
// the same for whoever looks, at any time, and no word has to be written to decide it.
//
//   rank   sees all ranks' publications          -> good
//   rank   does not see them for a while         -> hands over: says so in its record, announces to the worker
//   rank   is answered with a failure            -> looks once more: all are there -> good, else failed
//   rank   sees all, and a peer that handed over -> announces too, so that the worker looks and answers that peer
//   worker is announced a published call         -> looks: all are there -> answers good
//
// A record's state is its rank's alone. Rows stand from the eager buffer on that the record names; the rank writes there
// again once all peers' records of the call say that they are done, or after it has withdrawn its own. Whoever has
// read rows looks at the record once more: where it does not stand any more the rows are void.
//
// Nothing here is trusted but a rank's own area and what the kernel maps: a peer that writes nonsense into its own
// area breaks its own tenant's calls. tests/unit/proto/direct_area_test.cc walks every interleaving.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

namespace epd::shm {

inline constexpr uint32_t kDirectRecords = 128;
// Calls of one rank that may be open at a time; the newest this many are looked at.
inline constexpr uint32_t kDirectLook = 8;

enum class DirectState : uint32_t {
  kUnused = 0,
  kPublished = 1,
  kHandedOver = 2,  // Published, and announced to the worker.
  kDone = 3,        // Was good, and its rank has read what it needs.
  kWithdrawn = 4,   // Not good by this publication; its rows may be written over.
};

constexpr uint64_t DirectGate(uint32_t generation, uint32_t count) {
  return uint64_t{generation} << 32 | count;
}
constexpr uint32_t GateGeneration(uint64_t gate) { return static_cast<uint32_t>(gate >> 32); }
constexpr uint32_t GateCount(uint64_t gate) { return static_cast<uint32_t>(gate); }
// 0 is no publication.
constexpr uint32_t NextCount(uint32_t count) { return count == UINT32_MAX ? 1 : count + 1; }

constexpr uint64_t RecordWord(uint32_t count, DirectState state) {
  return uint64_t{count} << 32 | static_cast<uint32_t>(state);
}
constexpr bool Stands(uint64_t word, uint32_t count) {
  const auto state = static_cast<DirectState>(static_cast<uint32_t>(word));
  return static_cast<uint32_t>(word >> 32) == count &&
         (state == DirectState::kPublished || state == DirectState::kHandedOver ||
          state == DirectState::kDone);
}
constexpr bool IsHandedOver(uint64_t word) {
  return static_cast<DirectState>(static_cast<uint32_t>(word)) == DirectState::kHandedOver;
}
// Whoever published `count` will not read for it any more.
constexpr bool HasRead(uint64_t word, uint32_t count) {
  const auto state = static_cast<DirectState>(static_cast<uint32_t>(word));
  return static_cast<uint32_t>(word >> 32) != count || state == DirectState::kDone ||
         state == DirectState::kWithdrawn;
}

// Takes the gate from {generation, count - 1} to `count`. False: the generation has ended.
// Releases the record and the rows; orders them before any later look at peers.
inline bool PublishDirect(std::atomic<uint64_t>& gate, uint32_t generation, uint32_t before) {
  uint64_t expected = DirectGate(generation, before);
  return gate.compare_exchange_strong(expected, DirectGate(generation, NextCount(before)),
                                      std::memory_order_seq_cst, std::memory_order_relaxed);
}

// Ends the generation of `gate`, whose rank is hostile: it may write in between for ever. It then gets what it can do
// to itself anyway.
inline void EndDirect(std::atomic<uint64_t>& gate, uint32_t next) {
  constexpr int kTries = 1000;
  uint64_t seen = gate.load(std::memory_order_relaxed);
  for (int i = 0; i < kTries; ++i) {
    if (gate.compare_exchange_weak(seen, DirectGate(next, GateCount(seen)),
                                   std::memory_order_seq_cst, std::memory_order_relaxed)) {
      return;
    }
  }
  gate.store(DirectGate(next, GateCount(seen)), std::memory_order_seq_cst);
}

// What must be equal on all ranks: identity and fingerprint of a call (segment.h), and the generation. Without
// padding: compared as bytes.
struct DirectCall {
  uint64_t group_id = 0;
  uint64_t epoch = 0;
  uint64_t formation = 0;
  uint8_t program[16] = {};
  uint64_t execution = 0;  // As the worker counts it, the same on all ranks; not the raw number.
  uint32_t ordinal = 0;
  uint32_t occurrence = 0;
  uint32_t generation = 0;
  uint32_t dtype = 0;
  uint32_t alignment = 0;
  uint16_t top_k = 0;
  uint8_t kind = 0;
  uint8_t has_weights = 0;
  uint64_t row_bytes = 0;
  uint64_t plan_id = 0;
  uint64_t spec_hash = 0;
};
static_assert(sizeof(DirectCall) == 96);

// The first 128 bytes are what peers read. From `stage_bytes` on it is for the worker's figures and history alone.
struct alignas(64) DirectRecord {
  std::atomic<uint64_t> word;  // RecordWord(count, state).
  DirectCall call;
  uint32_t eager_buffer;
  uint32_t has_name;
  int64_t published_ns;  // CLOCK_MONOTONIC.
  uint64_t stage_bytes;
  int64_t ended_ns;
  int64_t waited_ns;    // From this rank's publication to the last one's.
  int64_t gathered_ns;  // From the first one's.
  uint64_t num_tokens;
  uint64_t recv_capacity;
  uint64_t demand;
  uint32_t last_rank;  // Who published last.
  uint32_t rank;
  uint64_t raw_execution;  // As in SlotRequest.
  uint32_t announced;      // The worker knows of the call.
  uint32_t routes;         // Of a prepare: 1 + the index of its first RouteLine (direct_tail.h).
  char name[32];           // Zero-terminated or cut; as in AnnounceRequest.
  uint32_t num_experts;    // Of a prepare: so many routes are counted.
  uint32_t padded_rows;  // Of a prepare: rows that only pad, in this rank's zones; once it is done.
  uint8_t padding[8];
};
static_assert(sizeof(DirectRecord) == 256);

struct alignas(4096) DirectArea {
  std::atomic<uint64_t> gate;
  // Worker: the newest publication whose record it has taken. The rank publishes only while its records are not
  // written over untaken; else the call goes through the worker.
  alignas(64) std::atomic<uint32_t> taken;
  // Worker: how many RouteLines stand in front of the area (direct_tail.h); an earlier release's worker has none.
  alignas(64) std::atomic<uint32_t> num_route_lines;
  // Rank: HashOf the last call that it could have published, and for which it asked the worker instead. A hint for peers, who
  // else would look for it as long as they may.
  alignas(64) std::atomic<uint64_t> asked;
  uint32_t next_route_line;  // The rank's alone.
  alignas(4096) DirectRecord records[kDirectRecords];
};
static_assert(sizeof(DirectArea) == 4096 + kDirectRecords * 256);

// FNV-1a.
inline uint64_t HashOf(const DirectCall& call) {
  uint8_t bytes[sizeof call];
  std::memcpy(bytes, &call, sizeof call);
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

// What the plan of a prepare that ranks made without the worker is named after, on all of them; a worker's names, which it
// counts, do not reach the highest bit.
inline uint64_t DirectPlanId(const DirectCall& call) { return HashOf(call) | uint64_t{1} << 63; }

// Which publication of `area` is `call`; 0: none of its newest ones.
inline uint32_t FindDirect(const DirectArea& area, const DirectCall& call) {
  uint32_t count = GateCount(area.gate.load(std::memory_order_seq_cst));
  for (uint32_t i = 0; i < kDirectLook && count != 0; ++i, --count) {
    const DirectRecord& record = area.records[count % kDirectRecords];
    if (!Stands(record.word.load(std::memory_order_acquire), count)) continue;
    if (std::memcmp(&record.call, &call, sizeof call) == 0) return count;
  }
  return 0;
}

}  // namespace epd::shm
