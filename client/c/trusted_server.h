// Whom a client believes to be its daemon. Whoever is first at a path that others can write to may listen
// there: so the kernel is asked who does, before a word is said.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "client/c/status.h"

namespace epd::client {

inline constexpr const char* kClientConfig = "/etc/epd/client.conf";

// The uids that a daemon may have: this process's own, root's, EPD_SERVER_UID's (which is to trust whoever
// sets it), and those that `config` names, one `server_user = NAME or UID` per line.
//   PERMISSION_DENIED  somebody other than root can write `config`
//   INVALID_ARGUMENT   a line of it, or EPD_SERVER_UID, names no user
Status TrustedServers(const std::string& config, std::vector<uid_t>* uids);

// OK if whoever listens at the other end of the Unix socket `fd`, connected to `path`, may be a daemon.
//   PERMISSION_DENIED  names path, uid, the uids that are expected, and what to do
//   as TrustedServers
Status CheckServer(int fd, const std::string& path, const std::string& config = kClientConfig);

// Why the program at `path` is not to be started, as "it belongs to uid 7"; "": it is.
std::string WhyNotRun(const std::string& path);

}  // namespace epd::client
