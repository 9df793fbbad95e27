// The sending side of a SEQPACKET socket whose reader may be slow, stopped or hostile.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/unique_fd.h"
#include "daemon/packet/packet.h"

namespace epd {

// Never blocks: what the socket does not take waits in a bounded queue until it is writable. A message with more descriptors
// than a datagram takes goes in several (descriptors_ahead.h). Not thread-safe.
class PacketChannel {
 public:
  // Descriptors to send: shared, because one arena may go to many peers before each has read it.
  using Fds = std::vector<std::shared_ptr<UniqueFd>>;

  explicit PacketChannel(UniqueFd socket, size_t max_queued_packets = 1024,
                         size_t max_queued_bytes = 4 << 20);
  // Of a peer that is believed: its messages may have as many descriptors as limits::kMessageFds.
  void AllowDescriptorsAhead() { allows_ahead_ = true; }
  // Whether the first descriptors of a message have come and the message has not.
  bool has_descriptors_ahead() const { return !ahead_.empty(); }

  int fd() const { return socket_.get(); }
  bool wants_write() const { return !queue_.empty(); }
  // Of messages that wait for the peer to read, and the most there may be.
  size_t queued_bytes() const { return queued_bytes_; }
  size_t max_queued_bytes() const { return max_bytes_; }

  // Sends now or queues.
  //   UNAVAILABLE         the peer is gone
  //   INVALID_ARGUMENT    longer than limits::kDatagramBytes, or more descriptors than limits::kMessageFds: nothing is sent,
  //                       and the next message goes out as ever
  //   RESOURCE_EXHAUSTED  the queue is full: the peer does not read; end the session
  absl::Status Send(std::string bytes, Fds fds = {});

  // Call when the socket is writable. Errors as Send.
  absl::Status Flush();

  // As ReceivePacket, a whole message. INVALID_ARGUMENT also: more descriptors than limits::kMessageFds; they are closed.
  absl::StatusOr<Packet> Receive(bool* would_block);

 private:
  struct Queued {
    std::string bytes;
    Fds fds;
  };
  // True: it went out.
  absl::StatusOr<bool> TrySend(const Queued& packet);
  absl::Status SendOrQueue(Queued packet);

  UniqueFd socket_;
  size_t max_packets_;
  size_t max_bytes_;
  size_t queued_bytes_ = 0;
  std::deque<Queued> queue_;
  bool allows_ahead_ = false;
  std::vector<UniqueFd> ahead_;  // Of the message that comes next.
  bool lost_ahead_ = false;
};

}  // namespace epd
