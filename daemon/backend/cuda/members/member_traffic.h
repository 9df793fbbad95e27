// What the workers of one operation send each other: which bytes, to whom, in which order. Pure.
//
// A communicator has one member per worker, and a worker may serve several ranks. Every worker computes
// its own list from the same numbers (spec, counts, tokens, capacities), so a pair of members has the same
// sizes in the same order on both sides, and nothing is exchanged but rows. Two members that read each other's memory
// (direct_peers.h) send each other nothing:
//
//   prepare            each rank's row of counts, to every other member
//   scatter            a landing (kernels/cuda/landing.h) per source and destination rank, as long as the
//                      tokens that go there, each once; ranks of one worker use landings, too, unless it reads others
//   gather             the slots of a rank's stage that belong to ranks of the other member, one message of
//                      rows and then weights (kernels/cuda/pack_rows.h), to where that rank's image is
//                      there; slots behind the capacity are dropped
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/pack_rows.h"
#include "kernels/routing_spec.h"
#include "proto/epd/v1/segment.h"

namespace epd::cuda {

// Equal on all members, but for what is said of the last two. `spec` borrows the experts' owners.
struct TrafficShape {
  shm::Kind kind = shm::Kind::kPrepare;
  RoutingSpec spec;
  uint64_t row_bytes = 0;
  bool has_weights = false;             // Of a gather: weights go along.
  std::vector<int> member_of_rank;      // [R]
  std::vector<uint64_t> recv_capacity;  // [R] slots
  // Of a scatter, [R, R]: tokens of each rank that go to each, once each. A member knows those with a rank of its own; the
  // others may be anything. Empty on all members: as many as the counts allow, beyond which no number here goes.
  std::vector<uint32_t> tokens_between = {};
  // [R] whether the rank's region is within reach of this member's device: its own ranks, and those of members that read its
  // ranks' regions as well. Empty: it reads no other member.
  std::vector<bool> mapped = {};
};

enum class TrafficPlace {
  kCounts,    // The table of counts [R, E].
  kLanding,   // The landings, all in one area.
  kMessages,  // The messages that this member has packed, all in one area.
  kImage,     // Where what comes from `rank` lies.
};

struct Transfer {
  int peer = 0;
  bool sends = false;
  TrafficPlace place = TrafficPlace::kCounts;
  int rank = 0;  // Whose bytes they are.
  uint64_t offset = 0;
  uint64_t bytes = 0;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct LandingPlaceOnDevice {
  uint64_t offset = 0;
  uint64_t bytes = 0;    // 0: no rows, or of no rank of this member.
  int64_t max_rows = 0;  // kReadWhereTheyLie: there is none, the rows are read.
};

// What goes of a rank's stage to other members or, of another member's rank, comes to this one.
struct PackedRows {
  std::vector<PackRun> packs;      // Of this member's ranks.
  std::vector<PackedRun> unpacks;  // Of others'.
  int64_t num_rows = 0;
  uint64_t weights_at = 0;  // In a message that has come.
};

struct MemberTraffic {
  std::vector<Transfer> transfers;             // In the order in which they are issued.
  std::vector<LandingPlaceOnDevice> landings;  // [R, R] by source and destination; of a scatter.
  uint64_t landing_bytes = 0;
  std::vector<PackedRows> packed;  // [R] by owner; of a gather.
  uint64_t message_bytes = 0;      // Of all that is packed here.
  size_t max_unpacks = 0;          // Of all ranks, whatever capacity those of other members have.

  uint64_t SentBytes() const;
};

// `counts` [R, E] fit the spec (CheckCounts); they are not looked at for a prepare.
MemberTraffic PlanMemberTraffic(const TrafficShape& shape, const int32_t* counts, int self);

}  // namespace epd::cuda
