#include "daemon/packet/packet_channel.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/epd/v1/descriptors_ahead.h"
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
  if (bytes.size() > limits::kDatagramBytes || fds.size() > limits::kMessageFds) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes.size(), " bytes and ", fds.size(),
                     " descriptors; one message takes at most ", limits::kDatagramBytes,
                     " (kDatagramBytes) and ", limits::kMessageFds, " (kMessageFds)"));
  }
  while (fds.size() > limits::kDatagramFds) {
    const auto rest = fds.begin() + limits::kDatagramFds;
    Queued ahead{std::string(kDescriptorsAhead), Fds(fds.begin(), rest)};
    if (absl::Status sent = SendOrQueue(std::move(ahead)); !sent.ok()) return sent;
    fds.erase(fds.begin(), rest);
  }
  return SendOrQueue({std::move(bytes), std::move(fds)});
}

absl::Status PacketChannel::SendOrQueue(Queued packet) {
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

absl::StatusOr<Packet> PacketChannel::Receive(bool* would_block) {
  for (;;) {
    absl::StatusOr<Packet> packet = ReceivePacket(socket_.get(), would_block);
    if (!packet.ok() || *would_block) return packet;
    const bool goes_ahead = allows_ahead_ && packet->bytes == kDescriptorsAhead;
    if (!goes_ahead && ahead_.empty() && !lost_ahead_) return packet;
    std::move(packet->fds.begin(), packet->fds.end(), std::back_inserter(ahead_));
    lost_ahead_ |= packet->lost_fds;
    if (ahead_.size() > limits::kMessageFds) {
      const size_t count = std::exchange(ahead_, {}).size();
      return absl::InvalidArgumentError(absl::StrCat(
          "a message with ", count, " descriptors or more; it may have ", limits::kMessageFds));
    }
    if (goes_ahead) continue;
    packet->fds = std::exchange(ahead_, {});
    packet->lost_fds = std::exchange(lost_ahead_, false);
    if (packet->lost_fds) packet->fds.clear();
    return packet;
  }
}

}  // namespace epd
