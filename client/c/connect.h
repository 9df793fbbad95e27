// Finding the daemon: which sockets are tried, in which order, and what is said when none answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/c/session.h"
#include "client/c/status.h"

namespace epd::client {

inline constexpr const char* kNodeSocket = "/run/epd/epd.sock";

struct ConnectOptions {
  std::string socket_path;  // Empty: EPD_SOCKET, else the node's, else this user's private one.
  std::string client_name;  // Empty: the process's command line.
  std::chrono::milliseconds timeout{10'000};
  bool autostart = true;
  std::string daemon_path;  // Empty: EPD_PROGRAM, else the one installed with this library.
};

// The folder of this user's private daemon: $XDG_RUNTIME_DIR/epd, else /tmp/epd-<uid>.
std::string PrivateFolder();

// Connects; starts a private daemon where none is found and that is allowed. Errors: epd_connect.
Status ConnectToDaemon(const ConnectOptions& options, std::shared_ptr<Session>* session);

}  // namespace epd::client
