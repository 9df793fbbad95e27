// What the exchange engine asks its surroundings to do, in the order in which it must be done.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/backend/move_job.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/peer_message.h"
#include "daemon/worker/engine/submission.h"
#include "daemon/worker/staging/eager_area.h"
#include "daemon/worker/staging/staging_pool.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// Write the operation into the submission's slot record, so that epd can answer for a dead worker.
struct LinkSubmission {
  Submission submission;
  OperationId operation;
};

// Take the operation's outcome record, undecided.
struct OpenRecord {
  OperationId operation;
};

// Write the outcome; before any answer that follows from it. `status` OK is a good outcome.
struct DecideRecord {
  OperationId operation;
  absl::Status status;
};

// Give the outcome record back: everybody knows.
struct CloseRecord {
  OperationId operation;
};

// Where an operation's rows lie, for one rank. Offsets count from the start of the rank's arena.
struct RegionView {
  uint64_t offset = 0;  // Of the region; the stage stands there.
  uint64_t bytes = 0;
  uint64_t out_offset = 0;  // Worker executor: of this rank's output.
  uint64_t out_bytes = 0;
  EagerArea eager = {};  // Of the arena set.
};

// Write into the submission's slot which operation it is and in which eager buffer each rank's rows stand; before the outcome, so that
// epd can answer for a worker that dies in between.
struct NameEagerBuffers {
  Submission submission;
  OperationId operation;
  std::vector<uint8_t> eager_buffer_of_rank;  // [R]
};

// No rank publishes anything more in the generation of the set's direct areas; before the answers that follow.
struct EndDirect {
  ArenaSetId set;
};

// Report with Exchange::StreamsIdle once no slot of the group is armed by a GPU's stream any more: what the streams had in them
// when the drain began has ended, and their clients make each call by itself.
struct AwaitStreams {
  GroupId group;
  Formation formation;
  std::vector<SessionId> sessions;  // Of the tenant, here.
};

// Report with Exchange::DirectIdle once no living rank of the tenant is in a call that ranks make for themselves.
struct AwaitDirect {
  GroupId group;
  Formation formation;
};

// Answer a submission. With an error, `region` is empty and `status` is the whole text for the client.
struct AnswerSubmission {
  Submission submission;
  absl::Status status;
  OperationId operation;
  RegionView region;
  uint64_t plan_id = 0;  // Of the operation on all nodes; a prepare's plan carries it.
  std::optional<shm::PlanName> plan_name = {};  // For the kernels behind a stream's announce.
  bool repeats = false;                         // An earlier step of the call was told the same.
  bool met = false;  // Every rank has published the call: that is all there is to say.
  // The execution's number on all ranks: later calls of its program may be published. Of `direct_set`.
  std::optional<uint64_t> direct_execution = {};
  ArenaSetId direct_set = {};
  uint32_t direct_generation = 0;  // Filled in by who carries it out.
};

// Make memory for [offset, offset + bytes) in all arenas of a set, as far as there is room in the pool's budget beside what
// `trims`, and those before them, have not given back yet; report it with Exchange::PagesCommitted, now or later. Until then
// the region stays the operation's.
struct CommitPages {
  OperationId operation;
  Region range;
  std::vector<Trim> trims;
};

// The operation has failed while its pages are being made: leave the rest out, and report it with Exchange::PagesCommitted, now or
// once what is under way has ended.
struct CancelPages {
  OperationId operation;
  ArenaSetId set;
};

// Make `num_arenas` arenas of `arena_bytes` each: of address space, where memory comes with
// CommitPages, else of memory.
struct CreateArenas {
  ArenaSetId set;
  uint32_t uid = 0;  // Of the tenants that use them.
  int num_arenas = 0;
  uint64_t arena_bytes = 0;
  // [num_arenas], empty for none: the landing arena of which it is a part, by number from 0; -1: of none.
  std::vector<int> landing_of_arena = {};
  std::string backend;  // Of the groups that use them; "auto": the worker's first.
};

// Drop the arenas; no operation uses them any more.
struct DropArenas {
  ArenaSetId set;
};

// The tenant can take announces: send its arenas, once they are there.
struct ReportTenantReady {
  GroupId group;
  Formation formation;
  ArenaSetId set;
  std::vector<Rank> ranks;  // [num_arenas] the rank of each arena.
  // Of each arena: what the tenant's operations on streams take turns on; bytes 0: nothing.
  uint64_t stream_region_offset = 0;
  uint64_t stream_region_bytes = 0;
};

// No operation of a draining tenant is open.
struct ReportTenantDrained {
  GroupId group;
  Formation formation;
};

// Move the rows of an operation between its ranks' regions (worker executor); report it with
// Exchange::RowsMoved.
struct MoveRows {
  OperationId operation;
  GroupId group;
  Formation formation;
  uint32_t uid = 0;  // Of the tenant.
  ArenaSetId set;
  MoveJob job;
};

// Every member is prepared to move the operation's rows: it has `place` in the communicator's order.
struct TakeTurn {
  OperationId operation;
  ArenaSetId set;
  uint64_t place = 0;
  std::vector<uint64_t> recv_capacity;  // [num_ranks]
  std::vector<uint32_t> tokens_from;    // As TokensFrom says for this worker.
};

// The operation has failed: by a communicator it gets no turn, and else whoever is at its move may stop; report its end with
// Exchange::RowsMoved.
struct CancelMove {
  OperationId operation;
  ArenaSetId set;
};

// Add the counts [E] that every rank staged for this prepare to the group's statistics, and what
// pads the zones of ranks that this worker serves. They are
// client memory: any bytes. The region stays as it is until the effect returns.
struct CountRoutes {
  GroupId group;
  Formation formation;
  uint32_t uid = 0;  // Of the tenant.
  ArenaSetId set;
  std::vector<uint64_t> offsets;   // By arena of the set.
  std::vector<int> arena_of_rank;  // Of the ranks that this worker serves; -1: of others.
  uint32_t num_experts = 0;        // E
  uint32_t alignment = 0;          // Slots, of each expert's zone; 0 is 1.
  // Where the ranks have staged them in device memory, what they have told instead, by rank: of a slice of the experts
  // (RouteSliceOf), which follows from the plan's id.
  std::vector<std::vector<uint16_t>> told = {};
  uint64_t plan_id = 0;
};

// Tell another node's worker; in order.
struct SendToPeer {
  Incarnation peer;
  PeerMessage message;
};

// An operation on several nodes, as the streams between workers name it.
struct PeerOperation {
  GroupId group;
  Formation formation;
  uint64_t number = 0;

  friend auto operator<=>(const PeerOperation&, const PeerOperation&) = default;
};

// Take rows of other nodes' ranks into the region of `operation`; report the last of each rank with
// Exchange::RowsLanded.
struct OpenWire {
  PeerOperation operation;
  ArenaSetId set;
  uint64_t offset = 0;  // Of the region, in every arena.
  uint64_t bytes = 0;
  std::map<Rank, int> arenas;           // Of the ranks on other nodes,
  std::map<Rank, Incarnation> servers;  // ... and the workers that send their rows.
};

// Send other nodes what a rank of this one has staged for them; report what cannot be sent with
// Exchange::RowsRefused. The stage is client memory: any bytes.
struct SendRows {
  PeerOperation operation;
  ArenaSetId set;
  int arena = 0;
  Rank rank;
  uint64_t offset = 0;  // Of the region.
  Announcement said;
  std::map<Incarnation, std::vector<Rank>> destinations;  // Nodes, with all of their ranks.
};

// Rows of one rank of an operation, before it has a number, as the worker `from` has sent them: what another one sends in the
// rank's name is something else.
struct RowsName {
  Incarnation from;
  GroupId group;
  Formation formation;
  OperationKey key;
  Rank rank;

  friend auto operator<=>(const RowsName&, const RowsName&) = default;
};
// Of a kRows, which is about one rank.
inline RowsName NameRows(Incarnation from, const PeerMessage& message) {
  const Rank rank = message.said.empty() ? Rank() : message.said[0].first;
  return {from, message.group, message.formation, message.key, rank};
}

// Send what ranks of this worker have staged in their eager buffers, each behind its message, before anything that the peers
// are told afterwards; report it with Exchange::RowsAheadSent. The stages are client memory: any bytes; nothing reads
// them once the effect returns.
struct SendRowsAhead {
  struct Stage {
    PeerMessage message;
    Rank rank;
    int arena = 0;
    uint64_t offset = 0;
    Announcement said;
  };
  OperationId operation;
  GroupId group;
  Formation formation;
  ArenaSetId set;
  std::map<Incarnation, std::vector<Rank>> destinations;  // All of each peer's.
  std::vector<Stage> stages;
};

// Write rows that have come with a message into an eager buffer of the arena that their rank has here.
struct LandRows {
  OperationId operation;
  RowsName name;
  ArenaSetId set;
  int arena = 0;
  uint64_t offset = 0;
};

// Let go of rows that have come with a message, if they are still held.
struct DropRows {
  RowsName name;
};

// Neither send nor land rows of the operation any more: when this returns, nobody touches its
// region.
struct CloseWire {
  PeerOperation operation;
};

// Tell epd that a formation on several nodes cannot go on and is to be formed anew.
struct ReportTenantBroken {
  GroupId group;
  Formation formation;
  absl::Status cause;
};

// Tell epd to end a session that holds a region of an ended operation for too long.
struct EvictSession {
  SessionId session;
  absl::Status cause;
};

enum class Severity { kInfo = 0, kWarning = 1, kError = 2 };

// A line for epd's log.
struct LogLine {
  Severity severity = Severity::kInfo;
  std::string text;
};

using Effect =
    std::variant<LinkSubmission, OpenRecord, DecideRecord, CloseRecord, NameEagerBuffers, EndDirect,
                 AwaitDirect, AwaitStreams, AnswerSubmission, CommitPages, CancelPages,
                 CreateArenas, DropArenas, ReportTenantReady, ReportTenantDrained, MoveRows,
                 TakeTurn, CancelMove, CountRoutes, SendToPeer, OpenWire, SendRows, SendRowsAhead,
                 LandRows, DropRows, CloseWire, ReportTenantBroken, EvictSession, LogLine>;
using Effects = std::vector<Effect>;

// The event that the engine works on: its time, and the effects that it has so far.
struct EngineEvent {
  absl::Time now;
  Effects effects;

  void Add(Effect effect) { effects.push_back(std::move(effect)); }
};

}  // namespace epd
