// What the exchange engine asks its surroundings to do, in the order in which it must be done.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "daemon/backend/move_job.h"
#include "daemon/control/staging_pool.h"
#include "daemon/core/ids.h"
#include "daemon/worker/lane_area.h"
#include "proto/epd/v1/segment.h"

namespace epd {

// An operation: unique over all workers of a node's epd, never 0.
using OperationId = StrongId<struct OperationIdTag, uint64_t>;

// One claimed use of a slot. It is answered exactly once.
struct Use {
  SessionId session;
  uint32_t slot = 0;
  uint32_t claim = 0;

  friend auto operator<=>(const Use&, const Use&) = default;
};

// Write the operation into the use's slot record, so that epd can answer for a dead worker.
struct LinkUse {
  Use use;
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
  LaneArea lanes = {};  // Of the arena set.
};

// Write into the use's slot which operation it is and in which lane each rank's rows stand; before the outcome, so that
// epd can answer for a worker that dies in between.
struct TellLanes {
  Use use;
  OperationId operation;
  std::vector<uint8_t> lane_of_rank;  // [R]
};

// Answer a use. With an error, `region` is empty and `status` is the whole text for the client.
struct AnswerUse {
  Use use;
  absl::Status status;
  OperationId operation;
  RegionView region;
};

// Make memory for [offset, offset + bytes) in all arenas of a set, after `trims`; report it with
// Exchange::PagesCommitted.
struct CommitPages {
  OperationId operation;
  Region range;
  std::vector<Trim> trims;
};

// Make `num_arenas` arenas of `arena_bytes` address space each; no memory yet.
struct CreateArenas {
  ArenaSetId set;
  int num_arenas = 0;
  uint64_t arena_bytes = 0;
};

// Drop the arenas; no operation uses them any more.
struct DropArenas {
  ArenaSetId set;
};

// The tenant can take announces: send its arenas.
struct ReportTenantReady {
  GroupId group;
  Formation formation;
  ArenaSetId set;
  std::vector<Rank> local_ranks;  // [num_arenas] the rank of each arena.
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
  ArenaSetId set;
  MoveJob job;
};

// Add the counts [E] that every rank staged for this prepare to the group's statistics. They are
// client memory: any bytes. The region stays as it is until the effect returns.
struct CountRoutes {
  GroupId group;
  Formation formation;
  ArenaSetId set;
  std::vector<uint64_t> offsets;  // By arena of the set.
  uint32_t num_experts = 0;       // E
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

using Effect = std::variant<LinkUse, OpenRecord, DecideRecord, CloseRecord, TellLanes, AnswerUse,
                            CommitPages, CreateArenas, DropArenas, ReportTenantReady,
                            ReportTenantDrained, MoveRows, CountRoutes, EvictSession, LogLine>;
using Effects = std::vector<Effect>;

}  // namespace epd
