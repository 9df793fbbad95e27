// Unix socket paths: is the folder safe, does somebody listen, and making the listener.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"

namespace epd {

inline constexpr size_t kMaxSocketPathBytes = 107;  // sockaddr_un without its terminating zero.

// OK for a path that a socket can be bound to.
//   INVALID_ARGUMENT  empty, relative, or longer than kMaxSocketPathBytes; `setting` names where it
//   comes from
absl::Status CheckSocketPath(const std::string& path, const std::string& setting);

// Makes the folder of `path` if it is missing (0755 for root, else 0700) and checks that nobody
// else can put another socket in its place.
//   PERMISSION_DENIED    it belongs to another user, or everybody may write there; names owner and
//   mode FAILED_PRECONDITION  it cannot be made
absl::Status PrepareFolderOf(const std::string& path);

// Whether a SEQPACKET server accepts connections at `path`.
bool SomebodyListens(const std::string& path);

// Binds and listens, non-blocking. The caller holds the InstanceLock of `path`; a file there is
// stale and replaced. The mode is 0666: epd itself checks who connects, and answers with a reason.
//   FAILED_PRECONDITION  something that is no socket lies there, or binding fails
absl::StatusOr<UniqueFd> ListenAt(const std::string& path);

}  // namespace epd
