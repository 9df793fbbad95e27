#include "daemon/packet/packet_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/epd/v1/limits.h"

namespace epd {

PacketChannel::PacketChannel(UniqueFd socket, size_t max_queued_packets, size_t max_queued_bytes)
    : socket_(std::move(socket)), max_packets_(max_queued_packets), max_bytes_(max_queued_bytes) {
  WidenSendBuffer(socket_.get());
}

absl::StatusOr<bool> PacketChannel::TrySend(const Queued& packet) {
  std::vector<int> fds;
  fds.reserve(packet.fds.size());
  for (const auto& fd : packet.fds) fds.push_back(fd->get());
  const absl::StatusOr<SendResult> sent = SendPacket(socket_.get(), packet.bytes, fds);
  if (!sent.ok()) return sent.status();
  return *sent == SendResult::kSent;
}

absl::Status PacketChannel::Send(std::string bytes, Fds fds) {
  Queued packet{std::move(bytes), std::move(fds)};
  if (packet.bytes.size() > limits::kDatagramBytes || packet.fds.size() > limits::kDatagramFds) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", packet.bytes.size(), " bytes and ", packet.fds.size(),
                     " descriptors; one message takes at most ", limits::kDatagramBytes,
                     " (kDatagramBytes) and ", limits::kDatagramFds, " (kDatagramFds)"));
  }
  if (queue_.empty()) {
    const absl::StatusOr<bool> sent = TrySend(packet);
    if (!sent.ok()) return sent.status();
    if (*sent) return absl::OkStatus();
  }
  if (queue_.size() >= max_packets_ || queued_bytes_ + packet.bytes.size() > max_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer does not read: ", queue_.size(),
                                                     " messages (", queued_bytes_,
                                                     " bytes) wait for it"));
  }
  queued_bytes_ += packet.bytes.size();
  queue_.push_back(std::move(packet));
  return absl::OkStatus();
}

absl::Status PacketChannel::Flush() {
  while (!queue_.empty()) {
    const absl::StatusOr<bool> sent = TrySend(queue_.front());
    if (!sent.ok()) return sent.status();
    if (!*sent) return absl::OkStatus();
    queued_bytes_ -= queue_.front().bytes.size();
    queue_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace epd
