// One datagram with its descriptors over a SOCK_SEQPACKET socket, without blocking.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/unique_fd.h"
#include "proto/epd/v1/limits.h"

namespace epd {

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> fds;  // Close-on-exec.
  // More came than limits::kDatagramFds, or than this process has room for: `fds` is empty.
  bool lost_fds = false;
};

enum class SendResult { kSent, kWouldBlock };

// Sends one datagram; `fds` stay the caller's.
//   UNAVAILABLE         the peer is gone
//   RESOURCE_EXHAUSTED  the kernel has no memory or no room for the descriptors; retrying later is
//   fine
absl::StatusOr<SendResult> SendPacket(int socket, absl::string_view bytes,
                                      absl::Span<const int> fds);

// Receives one datagram. An empty packet stands for "nothing there now" (`*would_block` set).
//   UNAVAILABLE       end of file or a reset: the peer is gone
//   INVALID_ARGUMENT  longer than limits::kDatagramBytes, or empty; the descriptors that came along are closed
absl::StatusOr<Packet> ReceivePacket(int socket, bool* would_block);

// Lets a socket take datagrams of limits::kDatagramBytes (the default send buffer of some kernels is
// smaller).
void WidenSendBuffer(int socket);

}  // namespace epd
