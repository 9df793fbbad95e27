// One end of the attach socket: whole datagrams with their descriptors.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "client/c/status.h"
#include "client/c/unique_fd.h"

namespace epd::client {

using Clock = std::chrono::steady_clock;

// Sending is safe from any thread; one thread at a time receives. Descriptors are close-on-exec.
class AttachSocket {
 public:
  struct Datagram {
    std::string bytes;
    std::vector<UniqueFd> fds;
    bool lacks_fds = false;  // This process had no room for all of them.
  };

  // Connects to the daemon that listens on `path`.
  //   INVALID_ARGUMENT   the path is longer than 107 bytes
  //   NOT_FOUND          nothing listens there (no such file, or refused: then what a killed epd
  //                      left is removed)
  //   PERMISSION_DENIED  the socket may not be opened, or is not a daemon's that this user trusts
  //   RESOURCE_EXHAUSTED  this process may open no further file
  //   UNAVAILABLE        anything else, the backlog full until `deadline` included
  static Status Connect(const std::string& path, Clock::time_point deadline, AttachSocket* socket);

  // Sends one datagram; waits at most 5 s for room.
  //   UNAVAILABLE  the daemon is gone or takes nothing
  Status Send(std::string_view bytes);

  // Whether a datagram, or the end of the session, is there; waits for it until `deadline`.
  bool WaitReadable(Clock::time_point deadline) const;

  // Receives one message, with the descriptors that came ahead of it.
  //   DEADLINE_EXCEEDED  none came until `deadline`
  //   UNAVAILABLE        the socket was closed
  //   DATA_LOSS          the datagram is too long
  Status Receive(Clock::time_point deadline, Datagram* datagram);

  // Makes every Receive return UNAVAILABLE, now and later; both sides see the end of the session.
  void Shutdown();

  bool valid() const { return fd_.valid(); }
  // Closes the descriptor without ending the parent's session: for a forked child.
  void Close() { fd_ = UniqueFd(); }

 private:
  Status ReceiveOne(Clock::time_point deadline, Datagram* datagram);

  UniqueFd fd_;
  std::vector<UniqueFd> ahead_;  // Of the message that comes next (descriptors_ahead.h).
  bool ahead_lacks_fds_ = false;
};

// The error of a message that lacks descriptors.
Status NoDescriptors();

}  // namespace epd::client
