// Goal: whoever connects is handed on when it has said Attach, and is told why otherwise: when it
// says something else, says nothing, or comes too late.
#include "daemon/node/attach/attach_listener.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/node/attach/socket_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

constexpr absl::Duration kDeadline = absl::Seconds(3);

class AttachListenerTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/epd-listener-XXXXXX";
    folder_ = mkdtemp(pattern);
    path_ = folder_ + "/s";
    absl::StatusOr<UniqueFd> socket = ListenAt(path_);
    ASSERT_TRUE(socket.ok()) << socket.status();
    ASSERT_TRUE(listener_.Start(*std::move(socket)).ok());
  }
  void TearDown() override {
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }

  PacketChannel Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return PacketChannel(std::move(fd));
  }
  // Lets the loop do what is to be done now.
  void Run() {
    for (int i = 0; i < 4; ++i) loop_.RunOnce(MonotonicNow());
  }
  // Why the client was sent away; "" when it was not.
  static std::string Goodbye(PacketChannel& client) {
    bool would_block = false;
    const absl::StatusOr<Packet> packet = client.Receive(&would_block);
    v1::ServerMessage message;
    if (would_block || !packet.ok() || !message.ParseFromString(packet->bytes)) return "";
    return message.goodbye().status().message();
  }

  std::string folder_;
  std::string path_;
  EventLoop loop_;
  std::vector<AttachListener::Arrival> arrived_;
  AttachListener::Limits limits_ = {.deadline = kDeadline};
  AttachListener listener_{
      {.policy = {.own = geteuid()}, .limits = [this] { return limits_; }},
      loop_,
      [this](AttachListener::Arrival arrival) { arrived_.push_back(std::move(arrival)); }};
};

TEST_F(AttachListenerTest, WhoSaysAttachIsHandedOnWithItsProcess) {
  PacketChannel client = Connect();
  v1::ClientMessage hello;
  hello.mutable_attach()->set_client_name("trainer");
  ASSERT_TRUE(client.Send(hello.SerializeAsString()).ok());
  Run();
  ASSERT_THAT(arrived_, SizeIs(1));
  EXPECT_EQ(arrived_[0].peer.pid, getpid());
  EXPECT_EQ(arrived_[0].attach.client_name(), "trainer");
  EXPECT_EQ(listener_.NextDeadline(), absl::InfiniteFuture()) << "nothing waits any more";
}

TEST_F(AttachListenerTest, WhoSaysSomethingElseIsToldWhatWasExpected) {
  PacketChannel client = Connect();
  ASSERT_TRUE(client.Send("GET / HTTP/1.1").ok());
  Run();
  EXPECT_THAT(arrived_, SizeIs(0));
  EXPECT_THAT(Goodbye(client), HasSubstr("expected a ClientMessage with `attach`"));
}

TEST_F(AttachListenerTest, WhoSaysNothingIsSentAwayAtTheDeadlineAndNotBefore) {
  PacketChannel client = Connect();
  const absl::Time before = MonotonicNow();
  Run();
  const absl::Time deadline = listener_.NextDeadline();
  EXPECT_GE(deadline, before + kDeadline);
  listener_.Tick(deadline - absl::Milliseconds(1));
  EXPECT_NE(listener_.NextDeadline(), absl::InfiniteFuture());
  listener_.Tick(deadline);
  EXPECT_EQ(listener_.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(Goodbye(client), HasSubstr("no Attach within 3s (attach_deadline)"));
}

TEST_F(AttachListenerTest, AListenerThatTakesAnothersPlaceLosesNobody) {
  PacketChannel early = Connect();  // Not accepted yet.
  unlink(path_.c_str());
  absl::StatusOr<UniqueFd> socket = ListenAt(path_);
  ASSERT_TRUE(socket.ok()) << socket.status();
  ASSERT_TRUE(listener_.Start(*std::move(socket)).ok());
  PacketChannel late = Connect();
  v1::ClientMessage hello;
  hello.mutable_attach()->set_client_name("trainer");
  for (PacketChannel* client : {&early, &late})
    ASSERT_TRUE(client->Send(hello.SerializeAsString()).ok());
  Run();
  EXPECT_THAT(arrived_, SizeIs(2));
}

TEST_F(AttachListenerTest, OneUidLeavesRoomForConnectionsOfOthers) {
  limits_ = {.unattached = 3, .unattached_per_uid = 2, .deadline = kDeadline};
  PacketChannel first = Connect();
  PacketChannel second = Connect();
  Run();
  PacketChannel third = Connect();
  Run();
  EXPECT_EQ(Goodbye(first), "");
  EXPECT_EQ(Goodbye(second), "");
  EXPECT_THAT(Goodbye(third), AllOf(HasSubstr(absl::StrCat("2 connections of uid ", geteuid())),
                                    HasSubstr(absl::StrCat("pid ", getpid())),
                                    HasSubstr("max_unattached_per_uid")));
  limits_.unattached_per_uid = 9;
  PacketChannel fourth = Connect();
  PacketChannel fifth = Connect();
  Run();
  EXPECT_EQ(Goodbye(fourth), "");
  EXPECT_THAT(Goodbye(fifth), HasSubstr("max_unattached)"));
}

TEST_F(AttachListenerTest, AtTheEndWhoWaitsAndWhoQueuesLearnWhy) {
  PacketChannel waiting = Connect();
  Run();
  PacketChannel queued = Connect();
  listener_.Stop(absl::UnavailableError("this epd is stopping"));
  EXPECT_EQ(Goodbye(waiting), "this epd is stopping");
  EXPECT_EQ(Goodbye(queued), "this epd is stopping");
}

}  // namespace
}  // namespace epd
