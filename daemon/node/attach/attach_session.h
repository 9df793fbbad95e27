// One attached client as the shell sees it: its socket, process and slots segments.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/core/worker_name.h"
#include "daemon/node/workers/segment.h"
#include "daemon/packet/packet_channel.h"

namespace epd {

// Who connected, as the kernel says.
struct PeerCredentials {
  pid_t pid = 0;  // 0: of a process namespace that epd does not see.
  uid_t uid = 0;
  std::vector<gid_t> gids = {};  // Its own, then the supplementary ones.
  UniqueFd pidfd;                // Invalid when pid is 0 and the kernel is older than Linux 6.5.
};

// Who else may attach than epd's own user and root.
struct AttachPolicy {
  uid_t own = 0;
  std::set<uint32_t> uids = {};
  std::set<uint32_t> gids = {};
};

// Reads SO_PEERCRED and SO_PEERGROUPS and opens the pidfd; that of SO_PEERPIDFD sees processes of other
// namespaces, too.
//   UNAVAILABLE         the process has ended already
//   RESOURCE_EXHAUSTED  no descriptor left
absl::StatusOr<PeerCredentials> ReadPeer(int socket);

//   PERMISSION_DENIED  it may not attach: names its uid, who may, and the settings
absl::Status CheckPeer(const PeerCredentials& peer, const AttachPolicy& policy);

// True while the process of `peer` runs, as far as it can be known.
bool ProcessAlive(const PeerCredentials& peer);

// A session's slots for one worker. No worker sees another one's.
struct WorkerSlots {
  shm::SlotsLayout layout;  // Epd's own word: the client may write over the segment's header.
  SharedSegment segment;
  std::shared_ptr<UniqueFd> worker_event;  // The eventfd that wakes the worker.

  shm::SlotsView view() const { return shm::SlotsView::Of(segment.data(), layout); }
};

// Of all workers.
inline uint64_t NumSlots(const std::map<WorkerName, WorkerSlots>& slots) {
  uint64_t sum = 0;
  for (const auto& [worker, of_worker] : slots) sum += of_worker.layout.num_slots;
  return sum;
}

//   RESOURCE_EXHAUSTED  memory or descriptors
absl::StatusOr<WorkerSlots> MakeWorkerSlots(SessionId session, uint64_t incarnation,
                                            const shm::SlotsLayout& layout);

// Those that another program of this process has made. Errors as SharedSegment::Adopt.
absl::StatusOr<WorkerSlots> AdoptWorkerSlots(const shm::SlotsLayout& layout,
                                             std::shared_ptr<UniqueFd> segment,
                                             std::shared_ptr<UniqueFd> worker_event);

struct AttachSession {
  SessionId id;
  uint32_t record_index = 0;  // Its block in every worker's records segment.
  PeerCredentials peer;
  std::string client_name;  // As the client said, made clean (text.h): at most 200 bytes.
  std::string client_version;
  std::string traceparent;  // As the client said; whoever shows it parses it.
  int64_t started = 0;      // The process, as the client said: seconds of Unix time, 0: not said.
  uint32_t version = 0;     // The protocol's.
  uint64_t features = 0;
  absl::Time since;  // Monotonic.
  std::unique_ptr<PacketChannel> channel;
  bool rests = false;   // The loop does not look for messages: one waits for its turn.
  uint32_t events = 0;  // EPOLL*: what the loop looks for.
  bool process_ended = false;
  // For the CPU's worker, and for others once it joined a group of theirs.
  std::map<WorkerName, WorkerSlots> slots;
  // It was sent descriptors of arenas, and may write to them while it lives.
  bool has_arenas = false;

  uint64_t num_slots() const { return NumSlots(slots); }
};

}  // namespace epd
