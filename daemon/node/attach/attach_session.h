// One attached client as the shell sees it: its socket, process and slots segments.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

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
  UniqueFd pidfd;  // Invalid when pid is 0.
};

// Reads SO_PEERCRED and opens the pidfd.
//   UNAVAILABLE         the process has ended already
//   RESOURCE_EXHAUSTED  no descriptor left
absl::StatusOr<PeerCredentials> ReadPeer(int socket);

// OK for epd's own user and root.
//   PERMISSION_DENIED  anybody else: names both uids
absl::Status CheckPeer(uid_t peer, uid_t own);

// True while the process of `peer` runs, as far as it can be known.
bool ProcessAlive(const PeerCredentials& peer);

// A session's slots for one worker. No worker sees another one's.
struct WorkerSlots {
  SharedSegment segment;
  std::shared_ptr<UniqueFd> worker_event;  // The eventfd that wakes the worker.
};

//   RESOURCE_EXHAUSTED  memory or descriptors
absl::StatusOr<WorkerSlots> MakeWorkerSlots(SessionId session, uint64_t incarnation);

// A bit of Attach.features.
inline constexpr uint64_t kTakesSlotsOfFurtherWorkers = 1;

struct AttachSession {
  SessionId id;
  uint32_t record_index = 0;  // Its block in every worker's records segment.
  PeerCredentials peer;
  std::string client_name;  // As the client said, made clean (text.h): at most 200 bytes.
  std::string client_version;
  uint32_t version = 0;  // The protocol's.
  uint64_t features = 0;
  absl::Time since;  // Monotonic.
  std::unique_ptr<PacketChannel> channel;
  // For the CPU's worker, and for others once it joined a group of theirs.
  std::map<WorkerName, WorkerSlots> slots;
  // It was sent descriptors of arenas, and may write to them while it lives.
  bool has_arenas = false;
};

}  // namespace epd
