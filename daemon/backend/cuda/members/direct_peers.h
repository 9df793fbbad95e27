// What one member of a communicator knows of the others on its node (CommunicatorMember::is_near), whose memory its device
// reads: who can, where each operation's regions are, and the mapped arenas of each tenant.
//
// Each member tells all these once whether its device can read their memory, with the board on which it will say where
// its regions are; and of each tenant, at its first operation, the arenas of its ranks. The messages go through epd, which
// knows who is who. Members only read each other's memory, so nothing that is late can be written into anybody's rows.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/backend/cuda/device/cuda_device.h"
#include "daemon/backend/cuda/members/region_board.h"
#include "daemon/backend/cuda/staging/cuda_arenas.h"
#include "daemon/backend/cuda/staging/peer_memory.h"
#include "daemon/backend/member_moves.h"

namespace epd::cuda {

// Serves one epoch. Not thread-safe; what it is given outlives it.
class DirectPeers {
 public:
  // `out`: takes what the others are to be told.
  DirectPeers(CudaDevice& device, const CommunicatorMember& membership,
              std::vector<NeighbourMessage>& out);

  // Tells all others whether this worker can read their memory, and waits until `deadline` for the same of them.
  void Greet(absl::Time deadline);
  // Of this communicator. What comes from nobody of it, or a second time, changes nothing.
  void Hear(NeighbourMessage message);
  // OK: all have greeted. UNAVAILABLE: not yet.
  //   DEADLINE_EXCEEDED  one has not; it names them
  //   anything else      this worker cannot hear the others, although it has told them that it can
  absl::Status Greeted(absl::Time now) const;
  // Once all have: why rows cannot go directly, the same on all these members; "": they can.
  std::string problem() const;
  // For messages: group and epoch.
  std::string Where() const;
  int self() const { return membership_.self; }
  bool is_near(int member) const { return membership_.is_near(static_cast<size_t>(member)); }
  // Whether no member is elsewhere.
  bool all_near() const { return membership_.all_near(); }

  // Whether the arenas of all ranks of the move that are mapped are so by now; tells the others of this worker's.
  //   FAILED_PRECONDITION  not yet; ask again
  //   RESOURCE_EXHAUSTED   the driver, or no descriptor
  absl::Status Reach(const MoveGroup& group, const MoveJob& job, CudaArenas& arenas);
  // Says where this worker's regions of the operation are, as soon as the board has room for its place.
  void Publish(uint64_t place, const MoveJob& job);
  void Poll();
  // Fills in the sizes of the ranks that are mapped, and where their regions are, [R]. Asked for each place once
  // with success. UNAVAILABLE: not all have said so. INTERNAL: a region is not within its arena.
  absl::Status TakeRegions(uint64_t place, const MoveGroup& group, MoveJob& job,
                           std::vector<DevicePointer>& regions);

  // Why an operation that had its turn is late.
  absl::Status Late() const;

  // Mapped memory that no new operation uses, to be unmapped once the device is idle.
  std::vector<PeerMemory> Forget(const CudaArenas* arenas);
  std::vector<PeerMemory> TakeMapped();

 private:
  struct Member {
    bool heard = false;
    std::string problem;
    std::optional<RegionBoard> board;  // Of another one that has no problem.
  };
  struct Arena {
    UniqueFd fd;  // Until it is mapped.
    uint64_t bytes = 0;
    std::optional<PeerMemory> mapped;
  };
  struct Tenant {
    const CudaArenas* arenas = nullptr;  // This worker's, once it has told of them.
    std::map<uint32_t, Arena> of_rank;   // Of the other workers' ranks.
  };
  using TenantKey = std::pair<uint64_t, uint64_t>;  // Group and formation.
  struct Unpublished {
    uint64_t place = 0;
    std::vector<RankRegion> ranks;
  };

  std::string FindProblem() const;
  bool is_other(size_t member) const {
    return membership_.is_near(member) && member != static_cast<size_t>(membership_.self);
  }
  // The tenant, of which another worker tells. One that has moved nothing here may never do so, and nobody says when it is over: of
  // those the last few stay.
  Tenant& Hearing(const TenantKey& key);
  NeighbourMessage For(size_t member) const;
  absl::Status Tell(const MoveGroup& group, const MoveJob& job, CudaArenas& arenas);
  absl::Status Map(Arena& arena) const;
  uint64_t NumTakenByAll() const;

  CudaDevice& device_;
  const CommunicatorMember membership_;
  std::vector<NeighbourMessage>& out_;
  std::optional<RegionBoard> own_;
  std::vector<Member> members_;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Status failure_;
  std::string
      waits_for_;  // Who has not said where its regions are, of the operation whose turn it is.
  std::map<TenantKey, Tenant> tenants_;
  std::deque<TenantKey> first_heard_;  // Of tenants that others told of first; the last few.
  std::deque<Unpublished> unpublished_;
};

}  // namespace epd::cuda
