// Finding the daemon: which sockets are tried, in which order, and what is said when none answers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/c/session.h"
#include "client/c/status.h"

namespace epd::client {

struct ConnectOptions {
  std::string socket_path;  // Empty: EPD_SOCKET, else the node's, else this user's private one.
  std::string client_name;  // Empty: the process's command line.
  std::chrono::milliseconds timeout{10'000};
  bool autostart = true;
  std::string daemon_path;  // Empty: EPD_PROGRAM, else the one installed with this library.
};

// Connects; starts a private daemon where none is found and that is allowed. Errors: epd_connect.
Status ConnectToDaemon(const ConnectOptions& options, std::shared_ptr<Session>* session);

// The socket that is there, without a word to it: `asked`, else EPD_SOCKET's, else the node's, else this user's private one, else,
// where none is there, the node's.
//   FAILED_PRECONDITION  none can ever answer there: a stale mount, or no socket
//   as PrivateFolder::Check, where only a private one is left to look for
Status FindSocket(const std::string& asked, std::string* path);

}  // namespace epd::client
