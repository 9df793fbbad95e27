// What a rank says of an operation when it announces it, and what names an operation.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "daemon/core/execution.h"
#include "daemon/core/ids.h"
#include "proto/epd/v1/segment.h"

namespace epd {

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
  std::optional<uint8_t> eager_buffer = {};  // The rows stand there already; the first of those.
  bool reads_many_eager_buffers = false;     // Of a peer's rows, and not one alone.
  bool from_stream = false;                  // A GPU's stream calls, and not a CPU.
};
// `request` is an announce.
Announcement CopyAnnouncement(const shm::SlotRequest& request);

// A program and one of its executions: the number that is the same on all ranks, counted from the
// formation's base.
struct Execution {
  ProgramId program{};
  uint64_t number = 0;

  friend auto operator<=>(const Execution&, const Execution&) = default;
};

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

}  // namespace epd
