// What a worker needs of a device: arenas, row movement, communicators. One implementation per kind
// of device; only this folder knows NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/backend/move_job.h"

namespace epd {

// The staging arenas of one set of peer sessions, one for each rank on this node.
class ArenaSet {
 public:
  virtual ~ArenaSet() = default;

  virtual int num_arenas() const = 0;
  virtual uint64_t arena_bytes() const = 0;  // Address space of one arena.

  // Descriptors of an arena to send to clients; borrowed, they live as long as the set.
  virtual int read_write_fd(int arena) const = 0;
  virtual int read_only_fd(int arena) const = 0;

  // Makes memory for [offset, offset + bytes) in every arena, so that touching it cannot fail
  // later. Blocks for the time of the allocation.
  //   RESOURCE_EXHAUSTED  the node has no memory for it; what was made stays, and is used next time
  virtual absl::Status Commit(uint64_t offset, uint64_t bytes) = 0;
  // Gives the memory of [offset, offset + bytes) in every arena back; it reads as zeros then.
  virtual void Trim(uint64_t offset, uint64_t bytes) = 0;

  // Copies client memory out. Never faults, whatever the client does to its arena.
  //   DATA_LOSS  the range cannot be read
  virtual absl::Status Read(int arena, uint64_t offset, absl::Span<char> out) const = 0;

  // The worker's own mapping of an arena, made at the first call; lives as long as the set.
  //   RESOURCE_EXHAUSTED  address space
  virtual absl::StatusOr<char*> Map(int arena) = 0;
};

// Owned by the exec thread; only MakeUniqueId runs elsewhere (unique_id_maker.h).
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;
  virtual std::string simd() const = 0;

  //   RESOURCE_EXHAUSTED  descriptors or address space
  virtual absl::StatusOr<std::unique_ptr<ArenaSet>> CreateArenas(int num_arenas,
                                                                 uint64_t arena_bytes) = 0;

  // Moves the rows of an operation that every rank has published; returns when every rank's output
  // is complete. `arenas` was made by this backend.
  //   INVALID_ARGUMENT  a rank's numbers do not fit each other or the group
  //   DATA_LOSS         a rank's plan or stage is corrupt; the message names it
  //   ABORTED           a rank's plan is of another epoch
  virtual absl::Status Move(ArenaSet& arenas, const MoveGroup& group, const MoveJob& job) = 0;

  // Enters the group's communicator. `unique_id` is empty or the 128 bytes of NCCL; it is never
  // logged.
  //   INVALID_ARGUMENT  another length
  virtual absl::Status InitCommunicator(uint64_t group_id, uint64_t epoch,
                                        const std::string& unique_id) = 0;
};

}  // namespace epd
