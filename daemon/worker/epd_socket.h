// The worker's end of the socket pair to epd.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

struct EpdMessage {
  v1::ToWorker body;
  std::vector<UniqueFd> fds;
};

// Never blocks: what epd does not take yet waits, bounded, until Flush. Exec thread only.
class EpdSocket {
 public:
  explicit EpdSocket(UniqueFd socket);

  int fd() const { return socket_.get(); }
  bool wants_write() const { return !queue_.empty(); }

  // The next message, or nothing when there is none now.
  //   UNAVAILABLE       epd is gone
  //   INVALID_ARGUMENT  not a message of worker.proto
  absl::StatusOr<std::optional<EpdMessage>> Receive();

  // `fds` are duplicated if they have to wait.
  //   UNAVAILABLE         epd is gone
  //   RESOURCE_EXHAUSTED  too long, too many descriptors, or epd has not read for long
  absl::Status Send(const v1::FromWorker& message, const std::vector<int>& fds = {});
  absl::Status Flush();

 private:
  struct Waiting {
    std::string bytes;
    std::vector<UniqueFd> fds;
  };
  // True: it went out; false: it would block.
  absl::StatusOr<bool> TrySend(const std::string& bytes, const std::vector<int>& fds);

  UniqueFd socket_;
  std::deque<Waiting> queue_;
  std::string buffer_;
};

}  // namespace epd
