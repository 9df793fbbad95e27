// What a worker needs of a device: arenas, row movement, communicators. One implementation per kind
// of device; only this folder knows NCCL.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/backend/member_moves.h"
#include "daemon/backend/move_job.h"
#include "daemon/shared_memory/file_pages.h"
#include "proto/epd/v1/direct_tail.h"

namespace epd {

// How a client gets at an arena.
enum class ArenaSharing {
  kMemfd,             // A memfd, which the client's CPU maps.
  kDeviceDescriptor,  // A descriptor of device memory (cuMemImportFromShareableHandle).
  kDeviceHandle,      // 64 bytes that name device memory (cuIpcOpenMemHandle).
};

// What a client needs to map an arena. Descriptors are borrowed, they live as long as the set.
struct ArenaShare {
  ArenaSharing sharing = ArenaSharing::kMemfd;
  uint64_t bytes = 0;       // To be mapped whole.
  int read_write_fd = -1;   // -1: shared by handle, or a landing arena.
  int read_only_fd = -1;    // The same descriptor again where a device knows no read-only one.
  std::string handle;       // kDeviceHandle: 64 bytes.
  std::string device_uuid;  // Of the device: 16 bytes; "" for a memfd.
  // As CreateArenas was told: it is an equal part of that landing arena, whose bytes and descriptor these are; in the order of
  // the arenas' indices. -1: of none.
  int landing = -1;
};

// The staging arenas of one set of peer sessions, one for each rank on this node.
class ArenaSet {
 public:
  virtual ~ArenaSet() = default;

  virtual int num_arenas() const = 0;
  virtual uint64_t arena_bytes() const = 0;  // Address space of one arena.

  // OK once the arenas are there. UNAVAILABLE: not yet, ask again after Backend::Poll. Anything
  // else: why there will be none.
  virtual absl::Status Ready() const { return absl::OkStatus(); }
  // Of arenas that are there.
  //   RESOURCE_EXHAUSTED  no descriptor for it
  virtual absl::StatusOr<ArenaShare> Share(int arena) = 0;

  // The memory of [offset, offset + bytes) in every arena: to be made before it is touched, so that touching it cannot fail, and
  // to be given back (page_processes.h). Empty of arenas whose memory is there from the start.
  virtual std::vector<FilePages> PagesOf(uint64_t offset, uint64_t bytes) const {
    static_cast<void>(offset), static_cast<void>(bytes);
    return {};
  }
  // Makes some of the set, as much as a turn of the worker bears. False: there is no more to be made, and Ready says how it went.
  virtual bool MakeSome() { return false; }
  // Where ranks meet without the worker. Given back before all others once nobody uses the set any more: whoever still meets
  // there finds that it has ended.
  virtual std::vector<FilePages> MeetingPages() const { return {}; }
  // Takes some of the set down, likewise, once its pages are given back and before it is destroyed.
  virtual bool DropSome() { return false; }
  // Whether memory of the set was touched here that could not be had: what stands in it since then is nobody's (page_guard.h).
  virtual bool lost_pages() const { return false; }

  // Copies client memory out. Never faults, whatever the client does to its arena.
  //   DATA_LOSS  the range cannot be read
  virtual absl::Status Read(int arena, uint64_t offset, absl::Span<char> out) const = 0;

  // Where the ranks of the set meet without the worker, behind arena_bytes(); the worker's own mapping, which lives as
  // long as the set. Null: such arenas have no such area.
  virtual shm::DirectTail* Direct(int arena) {
    static_cast<void>(arena);
    return nullptr;
  }

  // The worker's own mapping of an arena, made at the first call; lives as long as the set.
  //   RESOURCE_EXHAUSTED  address space
  virtual absl::StatusOr<char*> Map(int arena) = 0;
};

// A move that has ended; OK: every rank's output is complete.
struct MovedRows {
  MoveId id = 0;
  absl::Status status;
};

// Owned by the exec thread, which waits for nothing here; only MakeUniqueId runs elsewhere
// (unique_id_maker.h).
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // BackendTraits::served_by.
  virtual std::string simd() const = 0;

  // Begins to make arenas; ArenaSet::Ready says when they are there. Outlived by the backend. `landing_of_arena`: empty, or by
  // arena the number of the landing arena of which it is a part, from 0, -1 of none. Only this worker writes landing arenas,
  // and in such a set nobody meets without it. Of arenas that a CPU maps.
  //   RESOURCE_EXHAUSTED  descriptors or address space
  virtual absl::StatusOr<std::unique_ptr<ArenaSet>> CreateArenas(
      int num_arenas, uint64_t arena_bytes, const std::vector<int>& landing_of_arena) = 0;

  // Begins to move the rows of an operation that every rank has published; Poll gives `id` back
  // when every rank's output is complete, or with
  //   INVALID_ARGUMENT  a rank's numbers do not fit each other or the group
  //   DATA_LOSS         a rank's plan or stage is corrupt; the message names it
  //   ABORTED           a rank's plan is of another epoch
  // `arenas` was made by this backend and lives until then.
  virtual void StartMove(MoveId id, ArenaSet& arenas, const MoveGroup& group, const MoveJob& job,
                         absl::Time now) = 0;
  // Nobody needs the rows of a move that Poll has not given back: it is to end soon, with whatever status. What goes by a
  // communicator is cancelled there (member_moves.h).
  virtual void CancelMove(MoveId id) { static_cast<void>(id); }
  // The moves that have ended since the last call. Never waits.
  //   any error  the device is lost, or too late: this worker must be replaced, nothing ends any
  //              more
  virtual absl::StatusOr<std::vector<MovedRows>> Poll(absl::Time now) = 0;
  // Whether Poll has something to look for: it is to be called again and again.
  virtual bool busy() const { return false; }
  // Nobody asks for anything any more: when this returns, nothing here touches an arena.
  virtual void Rest() {}

  // The id of the group's communicator in an epoch, above those before. `unique_id` is empty or the 128 bytes of NCCL; it is never
  // logged.
  //   INVALID_ARGUMENT  another length
  virtual absl::Status InitCommunicator(uint64_t group_id, uint64_t epoch,
                                        const std::string& unique_id) = 0;
  // Null: rows of several nodes go through this worker's streams, not through the backend.
  virtual MemberMoves* member_moves() { return nullptr; }
};

using Backends = std::vector<std::unique_ptr<Backend>>;

// Which of a worker's backends serves groups that ask for `asked`: what is asked for by name and is not there is an error,
// never another backend; only "auto" takes the first. `no_cuda`: why "cuda" is not one of them, "" where nobody has looked.
//   FAILED_PRECONDITION  none
absl::StatusOr<Backend*> FindServing(const Backends& backends, const std::string& asked,
                                     absl::string_view no_cuda = "");

}  // namespace epd
