// Goal: a peer that is slow, stopped or hostile costs epd neither a blocked thread nor a
// descriptor.
#include "daemon/packet/packet.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "daemon/packet/packet_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/epd/v1/descriptors_ahead.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

using testing::HasSubstr;

int CountFds() {
  DIR* folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class PacketTest : public testing::Test {
 protected:
  PacketTest() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ours_.reset(pair[0]);
    theirs_.reset(pair[1]);
    WidenSendBuffer(theirs_.get());
  }
  absl::StatusOr<Packet> Receive() { return ReceivePacket(ours_.get(), &would_block_); }

  UniqueFd ours_;
  UniqueFd theirs_;
  bool would_block_ = false;
};

TEST_F(PacketTest, BytesAndDescriptorsArriveTogetherAndCloseOnExec) {
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(SendPacket(theirs_.get(), "hello", {file.get(), file.get()}).ok());
  const absl::StatusOr<Packet> packet = Receive();
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(packet->bytes, "hello");
  ASSERT_EQ(packet->fds.size(), 2u);
  EXPECT_EQ(fcntl(packet->fds[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(PacketTest, LongestMessageFitsAndOneByteMoreIsRefused) {
  ASSERT_TRUE(SendPacket(theirs_.get(), std::string(limits::kDatagramBytes, 'x'), {}).ok());
  ASSERT_EQ(Receive()->bytes.size(), limits::kDatagramBytes);
  ASSERT_TRUE(SendPacket(theirs_.get(), std::string(limits::kDatagramBytes + 1, 'x'), {}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Receive().status()));
}

TEST_F(PacketTest, TooManyDescriptorsAreRefusedAndNoneLeaks) {
  const int before = CountFds();
  std::vector<int> fds(253, 0);
  // Past SendPacket's own limit, as a hostile client would.
  char control[CMSG_SPACE(253 * sizeof(int))] = {};
  iovec part = {const_cast<char*>("x"), 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  ASSERT_EQ(sendmsg(theirs_.get(), &message, 0), 1);
  const absl::StatusOr<Packet> packet = Receive();
  ASSERT_TRUE(packet.ok()) << packet.status();
  EXPECT_TRUE(packet->lost_fds);
  EXPECT_TRUE(packet->fds.empty());
  EXPECT_EQ(packet->bytes, "x");
  EXPECT_EQ(CountFds(), before);
}

TEST_F(PacketTest, NothingThereIsNoErrorAndAClosedPeerIsUnavailable) {
  EXPECT_TRUE(Receive().ok());
  EXPECT_TRUE(would_block_);
  theirs_.reset();
  EXPECT_TRUE(absl::IsUnavailable(Receive().status()));
  EXPECT_FALSE(would_block_);
  EXPECT_TRUE(absl::IsUnavailable(SendPacket(ours_.get(), "x", {}).status()));
}

TEST_F(PacketTest, ChannelQueuesForASlowReaderInOrderAndThenRefuses) {
  PacketChannel channel(std::move(ours_), /*max_queued_packets=*/100, /*max_queued_bytes=*/1 << 20);
  int sent = 0;
  absl::Status status;
  while (status.ok() && sent < 100000) {
    status = channel.Send(std::string(1000, 'x') + std::to_string(sent));
    if (status.ok()) ++sent;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(channel.wants_write());
  for (int i = 0; i < sent; ++i) {
    bool would_block = false;
    const absl::StatusOr<Packet> packet = ReceivePacket(theirs_.get(), &would_block);
    ASSERT_TRUE(packet.ok() && !would_block) << "packet " << i << " of " << sent;
    ASSERT_EQ(packet->bytes.substr(1000), std::to_string(i));
    ASSERT_TRUE(channel.Flush().ok());
  }
  EXPECT_FALSE(channel.wants_write());
}

TEST_F(PacketTest, MoreDescriptorsThanADatagramTakesArriveWithTheirMessage) {
  PacketChannel sender(std::move(theirs_));
  PacketChannel receiver(std::move(ours_));
  receiver.AllowDescriptorsAhead();
  const int before = CountFds();
  const auto file = std::make_shared<UniqueFd>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const size_t count : {limits::kDatagramFds, limits::kDatagramFds + 1, limits::kMessageFds}) {
    ASSERT_TRUE(sender.Send("many", PacketChannel::Fds(count, file)).ok());
    ASSERT_TRUE(sender.Send("next", {}).ok());
    const absl::StatusOr<Packet> many = receiver.Receive(&would_block_);
    ASSERT_TRUE(many.ok()) << many.status();
    EXPECT_EQ(many->bytes, "many");
    EXPECT_EQ(many->fds.size(), count);
    EXPECT_FALSE(receiver.has_descriptors_ahead());
    const absl::StatusOr<Packet> next = receiver.Receive(&would_block_);
    EXPECT_EQ(next->bytes, "next");
    EXPECT_TRUE(next->fds.empty());
  }
  const PacketChannel::Fds too_many(limits::kMessageFds + 1, file);
  EXPECT_TRUE(absl::IsInvalidArgument(sender.Send("x", too_many)));
  EXPECT_EQ(CountFds(), before + 1);
}

TEST_F(PacketTest, DescriptorsWithoutEndAreRefusedAndNoneLeaks) {
  PacketChannel receiver(std::move(ours_));
  receiver.AllowDescriptorsAhead();
  const int before = CountFds();
  const std::vector<int> fds(limits::kDatagramFds, 0);
  absl::Status refused;
  for (size_t sent = 0; refused.ok() && sent <= 2 * limits::kMessageFds; sent += fds.size()) {
    ASSERT_TRUE(SendPacket(theirs_.get(), std::string(kDescriptorsAhead), fds).ok());
    refused = receiver.Receive(&would_block_).status();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(CountFds(), before);
}

// From a client they are no message at all.
TEST_F(PacketTest, DescriptorsAheadAreAMessageWhereTheyAreNotAllowed) {
  PacketChannel receiver(std::move(ours_));
  ASSERT_TRUE(SendPacket(theirs_.get(), std::string(kDescriptorsAhead), {0}).ok());
  EXPECT_EQ(receiver.Receive(&would_block_)->bytes, kDescriptorsAhead);
}

TEST_F(PacketTest, QueuedDescriptorsLiveUntilTheyAreSentOrTheChannelEnds) {
  const int before = CountFds();
  auto file = std::make_shared<UniqueFd>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  {
    PacketChannel channel(std::move(ours_), 4, 1 << 20);
    while (channel.Send(std::string(100000, 'x'), {file}).ok()) {
    }
    EXPECT_GT(file.use_count(), 1);
  }
  EXPECT_EQ(file.use_count(), 1);
  file.reset();
  theirs_.reset();
  EXPECT_EQ(CountFds(), before - 2);
}

}  // namespace
}  // namespace epd
