#include "daemon/worker/shell/epd_socket.h"

#include <fcntl.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/failpoint/failpoint.h"

namespace epd {
namespace {

constexpr size_t kMaxWaiting = 4096;
constexpr size_t kMaxWaitingBytes = 64 << 20;

absl::Status OfEpd(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("the socket to epd: ", status.message()));
}

}  // namespace

EpdSocket::EpdSocket(UniqueFd socket)
    : channel_(std::move(socket), kMaxWaiting, kMaxWaitingBytes) {}

absl::StatusOr<std::optional<EpdMessage>> EpdSocket::Receive() {
  bool would_block = false;
  absl::StatusOr<Packet> packet = channel_.Receive(&would_block);
  if (!packet.ok()) return OfEpd(packet.status());
  if (would_block) return std::nullopt;
  EPD_FAILPOINT_FLIP("worker.control.bytes", packet->bytes.data(), packet->bytes.size());
  EpdMessage message;
  message.fds = std::move(packet->fds);
  if (!message.body.ParseFromString(packet->bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket to epd: a message of ", packet->bytes.size(),
                     " bytes that is not of worker.proto; are epd and epd-worker of one build?"));
  }
  return message;
}

absl::Status EpdSocket::Send(const v1::FromWorker& message, const std::vector<int>& fds) {
  PacketChannel::Fds sent;
  for (const int fd : fds) {
    sent.push_back(std::make_shared<UniqueFd>(
        EPD_FAILPOINT_CALL("worker.control.no_descriptor", EMFILE, fcntl(fd, F_DUPFD_CLOEXEC, 0))));
    if (sent.back()->valid()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the worker has no descriptor left (LimitNOFILE) for the ", fds.size(), " of a message"));
  }
  return OfEpd(channel_.Send(message.SerializeAsString(), std::move(sent)));
}

absl::Status EpdSocket::Flush() { return OfEpd(channel_.Flush()); }

}  // namespace epd
