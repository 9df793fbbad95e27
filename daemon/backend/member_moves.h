// Moves between the workers of several nodes: members of one communicator, whose rows go from device to
// device.
//
//   StartMove       the sizes of what this member sends and receives are found
//   TakePrepared    ... they are known, with a digest of what all members must have alike
//   Issue           every member is prepared, with the same digest: the operation's place
//   Backend::Poll   the move has ended
//
// Who calls Issue gives places without gaps, in the same order on all members, and gives one only when all
// are prepared; so a place is never waited for, and what never gets one is cancelled.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/backend/move_job.h"
#include "daemon/core/unique_fd.h"

namespace epd {

// One worker's membership.
struct CommunicatorMember {
  uint64_t communicator = 0;
  uint64_t epoch = 0;
  std::vector<uint64_t> workers;  // By member: the incarnation of the worker.
  int self = 0;
  // Of a backend with a library, which is told of the group when it is made; every member has one rank.
  std::optional<GroupSpec> library = {};
  // By member: the device's ordinal of one that is a worker of this node, and so greets the others (NeighbourMessage), or kElsewhere.
  std::vector<int> devices = {};
  size_t num_ranks = 0;  // Of the group.

  static constexpr int kElsewhere = -1;
  bool is_near(size_t member) const { return devices[member] != kElsewhere; }
  // This one among them.
  size_t num_near() const {
    return static_cast<size_t>(std::count_if(devices.begin(), devices.end(),
                                             [](int device) { return device != kElsewhere; }));
  }
  bool all_near() const { return num_near() == workers.size(); }
};

// What one worker tells another of its node, with a descriptor; epd passes it on.
struct NeighbourMessage {
  // A rank's staging, that the other's device may read it.
  struct Arena {
    uint64_t group_id = 0;
    uint64_t formation = 0;
    uint32_t rank = 0;
    uint64_t bytes = 0;
  };
  uint64_t worker = 0;  // For whom; of one that has come, from whom. Its incarnation.
  uint64_t communicator = 0;
  uint64_t epoch = 0;
  std::optional<Arena> arena = {};  // Else it is the first one.
  std::string problem = {};         // Of the first: why its device cannot read the others' memory.
  UniqueFd fd = {};  // Of the arena, or of the regions' board where there is no problem.
};

// How rows of a group go between its ranks, for people.
struct RowLink {
  // "peer_memory", "peer_memory_and_nccl", "nccl", "nccl_ep"; empty: it is not known yet.
  std::string name = {};
  std::string why = {};  // Why no shorter one; empty: there is none, or it was not asked for.
};

struct PreparedMove {
  MoveId id = 0;
  uint64_t digest = 0;
  // Of a scatter, [ranks of this member, num_ranks]: tokens of each that go to each rank, each token once; where a library
  // moves the rows, of each operation, all tokens of its rank. Empty: sizes do not depend on it.
  std::vector<uint32_t> tokens_to = {};
};

// What the leader knows of all ranks.
struct IssuePlace {
  MoveId id = 0;
  uint64_t place = 0;
  std::vector<uint64_t> recv_capacity;  // [num_ranks]
  // [num_ranks, ranks of this member]: what each rank's member has said in `tokens_to` of these. Empty on all members: one has
  // not, and a message is as long as the plan's counts allow.
  std::vector<uint32_t> tokens_from = {};
};

// Of a backend; on its thread, without waiting.
class MemberMoves {
 public:
  virtual ~MemberMoves() = default;

  // Begins to enter, with the id that Backend::InitCommunicator was given; once more for each tenant.
  //   FAILED_PRECONDITION  there is no id, or no NCCL (why)
  //   ABORTED              this communicator has ended
  //   RESOURCE_EXHAUSTED   the worker is in too many
  virtual absl::Status Enter(const CommunicatorMember& membership, absl::Time now) = 0;
  // OK: every member has entered. UNAVAILABLE: not yet. Else: why not.
  virtual absl::Status Entered(uint64_t communicator, uint64_t epoch) const = 0;
  // A tenant needs it no more.
  virtual void Leave(uint64_t communicator, uint64_t epoch, absl::Time now) = 0;
  // A worker is gone: communicators with it are aborted, and their moves end with UNAVAILABLE.
  virtual void WorkerLost(uint64_t worker, const std::string& who, absl::Time now) = 0;

  // What other workers of this node are to be told.
  virtual std::vector<NeighbourMessage> TakeForNeighbours() { return {}; }
  // One of them says. May come before Enter.
  virtual void Hear(NeighbourMessage) {}
  // Of a communicator that was entered.
  virtual RowLink LinkOf(uint64_t communicator, uint64_t epoch) const = 0;
  // Lines for people: how the members of a communicator reach each other, and why.
  virtual std::vector<std::string> TakeNotes() { return {}; }

  virtual std::vector<PreparedMove> TakePrepared() = 0;
  virtual void Issue(const IssuePlace& place, absl::Time now) = 0;
  // The move gets no turn; it ends with ABORTED.
  virtual void Cancel(MoveId id, absl::Time now) = 0;
};

}  // namespace epd
