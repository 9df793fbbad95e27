// The worker's end of the socket pair to epd.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "daemon/packet/packet_channel.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

struct EpdMessage {
  v1::ToWorker body;
  std::vector<UniqueFd> fds;
};

// Messages of worker.proto over a packet channel: never blocks. Exec thread only.
class EpdSocket {
 public:
  explicit EpdSocket(UniqueFd socket);

  int fd() const { return channel_.fd(); }
  bool wants_write() const { return channel_.wants_write(); }

  // The next message, or nothing when there is none now.
  //   UNAVAILABLE       epd is gone
  //   INVALID_ARGUMENT  what came is no message of worker.proto; the one behind it may be
  absl::StatusOr<std::optional<EpdMessage>> Receive();

  // `fds` are duplicated.
  //   UNAVAILABLE         epd is gone
  //   INVALID_ARGUMENT    too long, too many descriptors, or none left to duplicate them: nothing was sent
  //   RESOURCE_EXHAUSTED  epd has not read for long
  absl::Status Send(const v1::FromWorker& message, const std::vector<int>& fds = {});
  absl::Status Flush();

 private:
  PacketChannel channel_;
};

}  // namespace epd
