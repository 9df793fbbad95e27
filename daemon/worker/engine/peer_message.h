// What the workers of a group that several serve, on one node or on several, tell each other about its operations.
//
// The worker of rank 0 leads. A worker announces an operation to it when all its own ranks have
// (kAnnounce). When everybody has, the leader compares the calls, draws a ticket and asks every
// worker for its regions (kReserve). A worker grants all of its regions at once (kGranted) or queues
// the operation by ticket. When all have granted, the leader admits (kAdmit), the ranks stage, and
// the workers send each other the rows. Whose ranks have all published, and who has the rows of all
// others (worker executor: and has moved them), says so (kPublished); when all do, the leader decides
// (kDecided).
//
// Between devices rows go by a communicator (daemon/backend/member_moves.h). Whose ranks have all
// published finds out how many bytes that will be and says so (kPrepared), and how many tokens each of its ranks has for each
// other one, which nobody else can know (prepared_rows.h); when all have, and mean the same,
// the leader gives the operation a place in the communicator's order, one behind the other over all tenants
// of the group, and tells it to everybody (kIssue). Who has been told takes part, whatever else happens, and
// a failed operation without a turn is cancelled once its leader has said that it failed.
//
// Small rows go ahead (rows_ahead.h): each worker sends the rows of its ranks to all others (kRows) once all have
// announced with rows in eager buffers, then its announce. With two workers the leader decides as soon as it has both; with more, each
// says when it has the rows of all others (kRowsLanded), and the leader decides when everybody has. If a call does not go so on one
// of them, the leader asks for regions as above, and rows that went ahead are dropped. Rows of more than two workers can come
// behind all that is said of their operation, on a stream of their own: who has sent them says behind them that they are over
// (kRowsOver), unless the operation is good.
//
// No deadlock: an operation with an older ticket has younger grants taken back (kRevoke), which the
// leader does (kRevoked) unless it has admitted; so the oldest one that waits gets its regions
// everywhere, and an admitted one waits only for copies. A local operation has a ticket too, and is
// admitted in the moment in which it is granted.
//
// Calls in GPUs' streams: each worker counts the calls of its own ranks, and the operation's region is the
// stream region of each rank's own arena. A tenant's stream region is one operation's at a time, on every worker the same,
// since its leader asks for them in one order. Until the streams are synchronised (stream_round.h) workers
// announce each rank by itself, so that the leader sees where they wait; kReserve, or a kFailed that is not
// `unsynchronised`, says that they are.
//
// A drain in order first lets the streams go on: what is in them cannot be refused and made again. A worker none of whose
// ranks' streams have anything from before it says so (kStreamsIdle); once all have, itself included, the leader
// tells everybody (kSealed), and from then on what is new is refused.
//
// Failure: only the leader decides. A worker asks it to (kRefuse); it tells everybody (kFailed), in
// one order. What ends a generation on one node ends the formation of a group that spans nodes
// (kEnded): the control plane forms the group anew, and its cut-off says which executions fail. A
// worker that has said kPublished waits for the leader's word, for the leader may have decided; if
// the leader is lost, or says nothing for long, it fails the operation. So ranks can disagree about
// an outcome only where the leader was lost between its decision and its word.
//
// The streams are ordered: what one worker says to another arrives in that order, or the stream is
// lost, which ends the formation.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/core/rank_holder.h"
#include "daemon/worker/engine/announcement.h"

namespace epd {

// How long a worker waits for its leader's word on an operation once the formation has ended.
inline constexpr absl::Duration kLeaderWord = absl::Seconds(2);
// The leader, which knows who is missing everywhere, is to be the first whose deadline passes.
inline constexpr absl::Duration kLeaderFirst = absl::Seconds(5);

// One worker of a group, one of its members: a run of one of a node's workers, and where it takes streams.
struct PeerWorker {
  NodeId name;
  Incarnation worker;
  std::string address;  // host:port; empty: it takes none.
  WorkerName worker_name = {};
  // With which this worker calls it; daemon/worker/peer_streams/stream_proof.h.
  std::string secret = {};

  WorkerId id() const { return {name, worker_name}; }
};

enum class LeaderStep : uint8_t {
  kAnnounce = 1,  // key, name, said, failures_seen, cause: what one of the calls has wrong
  kRefuse,        // key, cause, unsynchronised
  kReserve,       // key, number, ticket, bytes
  kGranted,       // number
  kRevoke,        // number
  kRevoked,       // number
  kAdmit,         // number
  kPublished,     // number
  kDecided,       // number; key, where rows went ahead
  kFailed,        // key, cause, failures_seen: the number of this failure, unsynchronised
  kFailedSeen,    // failures_seen
  kEnded,         // cause
  kPrepared,      // number, bytes: a digest, tokens: [ranks of the sender, R] of each for each rank
  kIssue,        // number, bytes: the place; said: of all ranks; tokens: [R, ranks of the receiver]
  kStreamsIdle,  // nothing
  kSealed,       // nothing
  kRows,  // key, said: one rank's, of which nothing but the rank counts, failures_seen; its rows come along
  kRowsLanded,  // key, failures_seen
  kRowsOver,    // key
};

struct PeerMessage {
  LeaderStep step = LeaderStep::kEnded;
  GroupId group;
  Formation formation;
  uint64_t clock = 0;  // Lamport's, of the sender.
  OperationKey key;
  std::string name;
  uint64_t number = 0;  // Of the operation, by its leader.
  Ticket ticket;
  uint64_t bytes = 0;  // Of the region on every rank.
  std::vector<uint32_t> tokens;
  uint64_t failures_seen = 0;
  // What failed is a call of streams that are not synchronised: the next of its number may be good.
  bool unsynchronised = false;
  std::vector<std::pair<Rank, Announcement>> said;
  absl::Status cause;
};

}  // namespace epd
