// One communicator of this worker with the moves that use it: from the numbers of each to its rows.
//
// A move reads the counts of its ranks' plans, from which all sizes follow; has the memory that these
// need; is prepared, and gets a place once every member is; and is put into the communicator's own stream
// in its turn, with NCCL's calls in the middle. Places stand in one order on all members, whichever
// tenant asks, so members never wait for each other crosswise.
//
// When NCCL fails or a member is lost the communicator is aborted, and is never used again. Who the lost
// one is, epd and the wire know better than NCCL: until they say so, the moves are kept, for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/backend/backend.h"
#include "daemon/backend/cuda/device/cuda_device.h"
#include "daemon/backend/cuda/members/issue_order.h"
#include "daemon/backend/cuda/members/known_counts.h"
#include "daemon/backend/cuda/members/member_link.h"
#include "daemon/backend/cuda/members/member_rows.h"
#include "daemon/backend/cuda/moves/move_memory.h"
#include "daemon/backend/cuda/staging/cuda_arenas.h"

namespace epd::cuda {

// One operation's part on this worker.
struct MemberMove {
  enum class State {
    kNew,
    kReading,   // The counts of the plans are on their way to the host.
    kSized,     // They are known; the memory may be missing.
    kPrepared,  // Waits for its turn.
    kIssued,    // NCCL puts it into the stream.
    kRunning,
  };
  MoveId id = 0;
  CudaArenas* arenas = nullptr;
  MoveGroup group;
  MoveJob job;
  std::unique_ptr<MemberRows> rows;
  MoveSteps steps;
  State state = State::kNew;
  int block = -1;
  bool has_place = false;
  bool issued = false;  // NCCL counts it among its operations.
  absl::Time deadline = absl::InfiniteFuture();
  absl::Status verdict;  // Of a move that the stream still has.
};

class MemberCommunicator {
 public:
  struct Options {
    CommunicatorMember membership;
    int stream = 0;        // Of its own.
    absl::Duration limit;  // For an operation, and for who is lost to be named.
  };
  // Members of what it is given outlive it.
  MemberCommunicator(CudaDevice& device, std::unique_ptr<MemberLink> link, const Options& options,
                     std::vector<MovedRows>& moved, std::vector<PreparedMove>& prepared);

  const CommunicatorMember& membership() const { return options_.membership; }
  int stream() const { return options_.stream; }
  RowLink row_link() const { return link_->row_link(); }
  int num_users = 0;  // Tenants.

  // `id`: as MemberLink::Begin.
  void Begin(const std::optional<NcclUniqueId>& id, absl::Time now);
  absl::Status Entered() const;
  // It ends, and whatever has no place in the stream ends with `why`. `worker_gone`: for the reason that
  // a member's worker is no more.
  void End(const absl::Status& why, absl::Time now, bool worker_gone = false);
  bool ended() const { return link_->state() == CommState::kGone; }

  void Start(std::unique_ptr<MemberMove> move);
  bool Has(MoveId id) const;
  void Issue(const IssuePlace& place, absl::Time now);
  void Cancel(MoveId id, absl::Time now);
  // Moves of arenas that go. What was mapped of other workers' for them.
  std::vector<PeerMemory> Forget(const CudaArenas* arenas);
  // A worker of this node says.
  void Hear(NeighbourMessage message) { link_->Hear(std::move(message)); }
  // DeviceWork says so. False: it is no move of this one.
  bool Complete(WorkId id);

  // Goes on with whatever can. An error: the worker must be replaced.
  absl::Status Poll(absl::Time now);
  // Whether Poll has something to look for.
  bool busy() const;
  bool has_moves() const { return !moves_.empty(); }
  MoveMemory::Left TakeMemory();

 private:
  using Moves = std::vector<std::unique_ptr<MemberMove>>;

  MemberMove* Find(MoveId id) const;
  void Finish(MemberMove& move, const absl::Status& status);
  void FinishAllOutsideOfTheStream(const absl::Status& why);
  void CheckLate(absl::Time now);
  absl::Status Settle(absl::Time now);
  absl::Status Advance(MemberMove& move, absl::Time now);
  absl::Status Read(MemberMove& move, absl::Time now);
  void TakeCounts(MemberMove& move);
  absl::Status Reserve(MemberMove& move);
  absl::Status IssueNext(absl::Time now);
  absl::Status Issue(MemberMove& move, absl::Time now);
  absl::Status PutRest(MemberMove& move, absl::Time now);
  absl::Status Enter(absl::Time now);
  size_t NumInStream() const;
  static KnownPlan PlanOf(const MemberMove& move);

  CudaDevice& device_;
  const Options options_;
  std::vector<MovedRows>& moved_;
  std::vector<PreparedMove>& prepared_;
  const std::unique_ptr<MemberLink> link_;
  bool begins_ = false;             // Enters as soon as there is the memory for it.
  std::optional<NcclUniqueId> id_;  // Until then.
  IssueOrder order_;
  KnownCounts known_;
  MoveMemory reading_;
  MoveMemory memory_;
  Moves moves_;                 // In the order of Start.
  std::optional<MoveId> next_;  // Has its turn, and waits for a block.
  bool was_ready_ = false;
  absl::Time failed_at_ = absl::InfiniteFuture();
  absl::Status end_;  // Why moves end, once it is known for good.
};

}  // namespace epd::cuda
