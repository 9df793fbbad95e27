// Goal: workers of one node hear each other's messages in order, by sockets whose ends somebody else passes on; what was said
// last is heard before the end; a stream that is lost is told once, and a new one does not mix with it; one that says much
// keeps nobody from the others.
#include "daemon/worker/peer_streams/node_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/tls/wire_secret.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/wire.h"

namespace epd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kLimit = absl::Seconds(30);
constexpr Incarnation kLeft(11);
constexpr Incarnation kRight(22);
constexpr const char* kSecret = "of each worker here";
constexpr const char* kNode = "n0";

// Two workers of one node, between which the test is epd.
class NodeStreamsTest : public ::testing::Test {
 protected:
  NodeStreamsTest() {
    left_ = Make(kLeft, left_address_);
    right_ = Make(kRight, right_address_);
  }
  static std::unique_ptr<Wire> Make(Incarnation self, std::string& address) {
    GiveEachLoopItsThreads();
    auto wire = std::make_unique<Wire>(Wire::Options{
        .node = kNode, .self = self, .tls = {}, .secret = kSecret, .passes_ends = true});
    const absl::StatusOr<std::string> bound = wire->Listen("127.0.0.1:0", "");
    EXPECT_TRUE(bound.ok()) << bound.status();
    if (bound.ok()) address = *bound;
    return wire;
  }
  void LeftMeets() { left_->Meet({Peer(kRight, right_address_, kLeft)}); }
  void RightMeets() { right_->Meet({Peer(kLeft, left_address_, kRight)}); }
  // Passes on what the left one has made.
  void Pass() {
    for (NodeStreamEnd& end : left_->TakeEnds()) {
      EXPECT_EQ(end.peer, kRight);
      right_->Adopt(kLeft, std::move(end.socket));
    }
    EXPECT_TRUE(right_->TakeEnds().empty()) << "both have made a pair";
  }
  static PeerWorker Peer(Incarnation to, const std::string& address, Incarnation from) {
    return {NodeId{kNode}, to, address, WorkerName{}, SecretOfPair(kSecret, from, to)};
  }
  static void Say(Wire& wire, Incarnation to, uint64_t number) {
    PeerMessage message;
    message.step = LeaderStep::kPublished;
    message.number = number;
    wire.Send(to, message);
  }

  std::string left_address_;
  std::string right_address_;
  std::unique_ptr<Wire> left_;
  std::unique_ptr<Wire> right_;
};

std::string Show(const WireEvent& event) {
  if (const auto* said = std::get_if<PeerSaid>(&event)) {
    return absl::StrCat(said->peer.value, " said ", said->message.number);
  }
  if (const auto* gone = std::get_if<PeerGone>(&event)) {
    return absl::StrCat(gone->peer.value, " gone: ", gone->cause.message());
  }
  return "something else";
}

// Of the other stream to the same worker, that of large rows by gRPC.
bool IsEndOfRows(const std::string& event) {
  return absl::StrContains(event, " gone: ") && !absl::StrContains(event, "within this node");
}

enum class Ends { kAll, kOfMessages };

// The next `count` events, or those that came within the limit.
std::vector<std::string> Next(Wire& wire, size_t count, Ends which = Ends::kOfMessages) {
  std::vector<std::string> shown;
  const absl::Time deadline = absl::Now() + kLimit;
  while (shown.size() < count && absl::Now() < deadline) {
    for (const WireEvent& event : wire.Take()) {
      std::string one = Show(event);
      if (which == Ends::kAll || !IsEndOfRows(one)) shown.push_back(std::move(one));
    }
    if (shown.size() >= count) break;
    const auto [once, while_ready] = wire.ready_fds();
    pollfd bells[] = {{once, POLLIN, 0}, {while_ready, POLLIN, 0}};
    poll(bells, 2, 10);
  }
  return shown;
}

TEST_F(NodeStreamsTest, MessagesGoBothWaysAlsoThoseThatWereSaidBeforeTheEndHasCome) {
  RightMeets();
  Say(*right_, kLeft, 1);
  Say(*right_, kLeft, 2);
  LeftMeets();
  Say(*left_, kRight, 3);
  EXPECT_THAT(left_->Take(), IsEmpty()) << "before epd has passed the end on";
  Pass();
  EXPECT_THAT(Next(*left_, 2), ElementsAre("22 said 1", "22 said 2"));
  EXPECT_THAT(Next(*right_, 1), ElementsAre("11 said 3"));
  Say(*right_, kLeft, 4);
  EXPECT_THAT(Next(*left_, 1), ElementsAre("22 said 4"));
}

TEST_F(NodeStreamsTest, WhoHasNotMetTheOtherHearsItAllTheSame) {
  LeftMeets();
  Say(*left_, kRight, 1);
  Pass();
  EXPECT_THAT(Next(*right_, 1), ElementsAre("11 said 1"));
  RightMeets();
  Say(*right_, kLeft, 2);
  EXPECT_THAT(Next(*left_, 1), ElementsAre("22 said 2"));
}

TEST_F(NodeStreamsTest, MoreThanASocketHoldsIsCountedAndArrivesInOrder) {
  LeftMeets();
  Pass();
  constexpr uint64_t kLast = 30'000;
  left_->Cork();
  for (uint64_t number = 1; number <= kLast; ++number) Say(*left_, kRight, number);
  left_->Flush();
  const auto traffic = left_->traffic().all();
  EXPECT_EQ(traffic.at(kNode)->queued_messages.load(), kLast);
  std::vector<std::string> heard;
  const absl::Time deadline = absl::Now() + kLimit;
  while (heard.size() < kLast && absl::Now() < deadline) {
    for (const WireEvent& event : right_->Take()) heard.push_back(Show(event));
    EXPECT_THAT(left_->Take(), IsEmpty());  // It sends on.
  }
  ASSERT_EQ(heard.size(), kLast);
  for (uint64_t number = 1; number <= kLast; ++number) {
    ASSERT_EQ(heard[number - 1], absl::StrCat("11 said ", number));
  }
  EXPECT_EQ(traffic.at(kNode)->queued_messages.load(), 0u);
}

TEST_F(NodeStreamsTest, LastWordsAreHeardBeforeTheEndOfAnyStream) {
  LeftMeets();
  RightMeets();
  Pass();
  Say(*right_, kLeft, 1);
  EXPECT_THAT(Next(*left_, 1), ElementsAre("22 said 1"));
  for (uint64_t number = 1; number <= 30; ++number) Say(*left_, kRight, number);
  left_.reset();
  const std::vector<std::string> heard = Next(*right_, 31, Ends::kAll);
  ASSERT_GE(heard.size(), 31u);
  for (uint64_t number = 1; number <= 30; ++number) {
    EXPECT_EQ(heard[number - 1], absl::StrCat("11 said ", number));
  }
  EXPECT_THAT(heard[30], HasSubstr("11 gone: "));
}

// The end of the stream of rows may be seen first.
TEST_F(NodeStreamsTest, LastWordsOfManyTurnsAreHeardBeforeTheEndOfAnyStream) {
  LeftMeets();
  RightMeets();
  Pass();
  Say(*right_, kLeft, 1);
  EXPECT_THAT(Next(*left_, 1), ElementsAre("22 said 1"));
  constexpr size_t kMany = 6000;
  left_->Cork();
  for (uint64_t number = 1; number <= kMany; ++number) Say(*left_, kRight, number);
  left_->Flush();
  left_.reset();
  absl::SleepFor(absl::Milliseconds(100));  // Both ends are there.
  const std::vector<std::string> heard = Next(*right_, kMany + 1, Ends::kAll);
  ASSERT_GT(heard.size(), kMany);
  for (uint64_t number = 1; number <= kMany; ++number)
    ASSERT_EQ(heard[number - 1], absl::StrCat("11 said ", number));
  EXPECT_THAT(heard[kMany], HasSubstr("11 gone: "));
}

TEST_F(NodeStreamsTest, AfterALossBothAreToldAndANewStreamIsMade) {
  LeftMeets();
  RightMeets();
  Pass();
  Say(*left_, kRight, 1);
  EXPECT_THAT(Next(*right_, 1), ElementsAre("11 said 1"));
  right_->Forget(kLeft);
  EXPECT_THAT(Next(*left_, 1), ElementsAre("22 gone: its stream within this node has ended: the "
                                           "other side has closed it"));
  Say(*left_, kRight, 2);  // Its loss has been told.
  left_->Forget(kRight);
  RightMeets();
  Say(*right_, kLeft, 3);
  LeftMeets();
  Say(*left_, kRight, 4);
  Pass();
  EXPECT_THAT(Next(*right_, 1), ElementsAre("11 said 4"));
  EXPECT_THAT(Next(*left_, 1), ElementsAre("22 said 3"));
}

TEST_F(NodeStreamsTest, ANewEndWaitsUntilTheOldStreamIsForgotten) {
  LeftMeets();
  RightMeets();
  Pass();
  Say(*left_, kRight, 1);
  left_->Forget(kRight);
  LeftMeets();
  Say(*left_, kRight, 2);
  Pass();  // Before the right one has looked at the old stream's end.
  const std::vector<std::string> heard = Next(*right_, 2);
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0], "11 said 1");
  EXPECT_THAT(heard[1], HasSubstr("11 gone"));
  right_->Forget(kLeft);
  EXPECT_THAT(Next(*right_, 1), ElementsAre("11 said 2"));
}

// ---- one side ----

// What a worker's streams say of bytes that a peer has written into its end.
class HostilePeerTest : public ::testing::Test {
 protected:
  HostilePeerTest() {
    streams_.Meet(kRight);
    std::vector<NodeStreamEnd> ends = streams_.TakeEnds();
    EXPECT_EQ(ends.size(), 1u);
    if (!ends.empty()) end_ = std::move(ends[0].socket);
  }
  void Write(const std::string& bytes) const {
    EXPECT_EQ(send(end_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  static std::string Word(uint32_t value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  std::vector<std::string> Told() {
    std::vector<std::string> told;
    for (const WireEvent& event : streams_.Take()) told.push_back(Show(event));
    return told;
  }

  RemoteRegions regions_;
  Traffic traffic_;
  NodeStreams streams_{kNode, kLeft, regions_, traffic_};
  UniqueFd end_;
};

TEST_F(HostilePeerTest, AMessageThatIsTooLongEndsItsStream) {
  Write(Word(kMaxBufferBytes + 1));
  EXPECT_THAT(Told(), ElementsAre(HasSubstr("ended: got a message of 16777217 bytes, at most "
                                            "16777216")));
  EXPECT_THAT(Told(), IsEmpty()) << "told twice";
}

TEST_F(HostilePeerTest, WhatIsNoMessageEndsItsStream) {
  Write(Word(4) + Word(99));
  EXPECT_THAT(Told(), ElementsAre(HasSubstr("got a buffer of kind 99 that has no place here")));
}

TEST_F(HostilePeerTest, AnEmptyMessageEndsItsStream) {
  Write(Word(0));
  EXPECT_THAT(Told(), ElementsAre(HasSubstr("got an empty buffer")));
}

TEST_F(HostilePeerTest, APartOfAMessageIsNone) {
  Write(Word(1000) + Word(2) + "and no more");
  EXPECT_THAT(Told(), IsEmpty());
  end_.reset();
  EXPECT_THAT(Told(), ElementsAre(HasSubstr("the other side has closed it")));
}

TEST_F(HostilePeerTest, SeveralInOneBufferEndItsStream) {
  Write(Word(4) + Word(static_cast<uint32_t>(FrameKind::kSeveral)));
  EXPECT_THAT(Told(), ElementsAre(HasSubstr("got a buffer of kind 5 that has no place here")));
}

// As it is sent: the smallest that says something.
std::string SmallMessage(uint64_t number) {
  PeerMessage said;
  said.step = LeaderStep::kPublished;
  said.number = number;
  LastSubject before;
  const auto kind = static_cast<uint32_t>(FrameKind::kMessage);
  const std::string message = ToProto(said, before).SerializeAsString();
  const auto bytes = static_cast<uint32_t>(sizeof kind + message.size());
  std::string framed(2 * sizeof kind, '\0');
  std::memcpy(framed.data(), &bytes, sizeof bytes);
  std::memcpy(framed.data() + sizeof bytes, &kind, sizeof kind);
  return framed + message;
}

TEST_F(HostilePeerTest, AFloodIsReadInTurnsAndKeepsNobodyFromTheOthers) {
  constexpr Incarnation kThird(33);
  streams_.Meet(kThird);
  std::vector<NodeStreamEnd> ends = streams_.TakeEnds();
  ASSERT_EQ(ends.size(), 1u);
  std::string flood;
  size_t num_said = 0;
  while (flood.size() < 6 * kTurnBytes) flood += SmallMessage(++num_said);
  Write(flood);
  std::swap(end_, ends[0].socket);
  Write(SmallMessage(7));
  size_t num_heard = 0;
  for (int turn = 0; turn < 7; ++turn) {
    pollfd readable = {.fd = streams_.ready_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&readable, 1, 0), 1) << "it would sleep before turn " << turn;
    const std::vector<std::string> told = Told();
    const auto of_third = std::count(told.begin(), told.end(), "33 said 7");
    EXPECT_EQ(of_third, turn == 0 ? 1 : 0) << "turn " << turn;
    for (const std::string& one : told) {
      if (one == "33 said 7") continue;
      ASSERT_EQ(one, absl::StrCat("22 said ", ++num_heard));
    }
    EXPECT_LE(told.size(), 1 + kTurnBytes / (flood.size() / num_said) + 2);
  }
  EXPECT_EQ(num_heard, num_said);
}

// A worker's last words wait in its last half a second, in which epd and systemd send it signals.
TEST_F(HostilePeerTest, ASignalDoesNotCutOffWhatIsAwaited) {
  const std::string message(1 << 20, 'x');  // More than a socket holds.
  const grpc::Slice slice(message);
  streams_.Enqueue(kRight, grpc::ByteBuffer(&slice, 1));
  struct sigaction before = {};
  struct sigaction nothing = {};
  nothing.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &nothing, &before), 0);
  size_t heard = 0;
  std::thread reader([&, waits = pthread_self()] {
    absl::SleepFor(absl::Milliseconds(50));
    pthread_kill(waits, SIGUSR1);
    absl::SleepFor(absl::Milliseconds(50));
    std::vector<char> bytes(64 << 10);
    pollfd readable = {.fd = end_.get(), .events = POLLIN, .revents = 0};
    while (poll(&readable, 1, /*timeout=*/1000) > 0) {
      const ssize_t now = recv(end_.get(), bytes.data(), bytes.size(), 0);
      if (now <= 0) break;
      heard += static_cast<size_t>(now);
    }
  });
  streams_.Await(std::chrono::seconds(10));
  reader.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(heard, sizeof(uint32_t) + message.size());
}

// No other worker is there.
class NodeStreamsAloneTest : public ::testing::Test {
 protected:
  // While this process may open nothing more.
  template <typename Body>
  static void WithoutDescriptors(const Body& body) {
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none = {0, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    body();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  std::unique_ptr<NodeStreams> Make() {
    return std::make_unique<NodeStreams>(kNode, kLeft, regions_, traffic_);
  }

  RemoteRegions regions_;
  Traffic traffic_;
};

TEST_F(NodeStreamsAloneTest, SaysThatThereWasNoDescriptor) {
  std::unique_ptr<NodeStreams> streams;
  std::unique_ptr<Inbox> inbox;
  WithoutDescriptors([&] {
    streams = Make();
    inbox = std::make_unique<Inbox>();
  });
  EXPECT_EQ(streams->status(), absl::ResourceExhaustedError("epoll_create1: Too many open files"));
  EXPECT_EQ(inbox->status(), absl::ResourceExhaustedError("eventfd: Too many open files"));
}

TEST_F(NodeStreamsAloneTest, WhatIsForgottenIsNotToldLater) {
  const std::unique_ptr<NodeStreams> streams = Make();
  WithoutDescriptors([&] { streams->Meet(kRight); });
  streams->Forget(kRight);
  streams->Meet(kRight);
  EXPECT_THAT(streams->Take(), IsEmpty()) << "of the stream before this one";
}

TEST_F(NodeStreamsAloneTest, WithoutADescriptorThePeerIsToldToBeGone) {
  const std::unique_ptr<NodeStreams> streams = Make();
  WithoutDescriptors([&] { streams->Meet(kRight); });
  const std::vector<WireEvent> told = streams->Take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(Show(told[0]), HasSubstr("22 gone: its stream within this node has ended: "
                                       "socketpair: Too many open files"));
}

}  // namespace
}  // namespace epd
