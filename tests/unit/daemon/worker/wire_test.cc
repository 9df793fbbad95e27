// Goal: two workers hear each other over streams of which the network knows the urgent ones; an
// address that cannot be had is an error that says which and what to do.
#include "daemon/worker/peer_streams/wire.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/core/unique_fd.h"
#include "daemon/tls/wire_secret.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/stream_loop.h"
#include "daemon/worker/peer_streams/stream_proof.h"
#include "daemon/worker/peer_streams/urgent_socket.h"
#include "proto/epd/v1/wire.pb.h"
#include "tests/fakes/failing_threads.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(30);
constexpr Incarnation kLeft(11);
constexpr Incarnation kRight(22);
constexpr const char* kSecret = "of each worker here";

// `to` as `from` is told of it by a formation, if the secret is the right one.
PeerWorker Peer(Incarnation to, const std::string& address, Incarnation from = kLeft,
                const std::string& secret = kSecret) {
  return {NodeId{"right"}, to, address, {}, SecretOfPair(secret, from, to)};
}

std::unique_ptr<Wire> MakeWire(Incarnation self) {
  GiveEachLoopItsThreads();
  return std::make_unique<Wire>(Wire::Options{
      .node = absl::StrCat("n", self.value), .self = self, .tls = {}, .secret = kSecret});
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int PortOf(int socket) {
  sockaddr_in address = {};
  socklen_t length = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

// Invalid: the port is taken.
UniqueFd TakePort(int port) {
  UniqueFd taken(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  if (bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(taken.get(), 1) != 0) {
    taken.reset();
  }
  return taken;
}

// What the peer of `wire` says next.
std::string NextEvent(Wire& wire) {
  const absl::Time deadline = absl::Now() + kLimit;
  while (absl::Now() < deadline) {
    for (const WireEvent& event : wire.inbox().Take()) {
      if (const auto* said = std::get_if<PeerSaid>(&event)) {
        return absl::StrCat(said->peer.value, " said ", said->message.number);
      }
      if (const auto* gone = std::get_if<PeerGone>(&event)) {
        return std::string(gone->cause.message());
      }
      if (const auto* stranger = std::get_if<PeerRefused>(&event)) {
        return absl::StrCat("refused: ", stranger->why.message());
      }
    }
    pollfd bell = {wire.inbox().wakeup_fd(), POLLIN, 0};
    poll(&bell, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline - absl::Now())));
  }
  return "nothing";
}

PeerMessage Message(uint64_t number) {
  PeerMessage message;
  message.step = LeaderStep::kPublished;
  message.number = number;
  return message;
}

struct Connections {
  int marked = 0;
  int plain = 0;
};

// Of this process, with `port` at either end.
Connections CountConnections(int port) {
  constexpr int kMaxFds = 1024;
  Connections found;
  for (int fd = 0; fd < kMaxFds; ++fd) {
    sockaddr_storage peer = {};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) continue;
    const int remote = ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port);
    if (remote != port && PortOf(fd) != port) continue;
    int priority = 0;
    int traffic_class = 0;
    socklen_t size = sizeof priority;
    getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, &size);
    size = sizeof traffic_class;
    getsockopt(fd, IPPROTO_IP, IP_TOS, &traffic_class, &size);
    const bool marked = priority == kUrgentPriority && traffic_class == kUrgentTrafficClass;
    ++(marked ? found.marked : found.plain);
  }
  return found;
}

TEST(WireTest, MessagesArriveOnConnectionsThatAreMarkedUrgentAndLargeRowsHaveOthers) {
  const std::unique_ptr<Wire> left = MakeWire(kLeft);
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  left->Meet({Peer(kRight, *address)});
  left->Send(kRight, Message(7));
  EXPECT_EQ(NextEvent(*right), "11 said 7");

  int express = 0;
  int bulk = 0;
  const size_t colon = address->find(':');
  const size_t comma = address->find(',');
  ASSERT_TRUE(absl::SimpleAtoi(address->substr(colon + 1, comma - colon - 1), &express));
  ASSERT_TRUE(absl::SimpleAtoi(address->substr(comma + 1), &bulk));
  const Connections urgent = CountConnections(express);
  EXPECT_EQ(urgent.marked, 2) << "both ends of one connection";
  EXPECT_EQ(urgent.plain, 0);
  EXPECT_EQ(CountConnections(bulk).marked, 0);
}

TEST(WireTest, WhatWaitsForAPeerThatDoesNotAnswerIsCountedUntilItsStreamEnds) {
  const UniqueFd silent = TakePort(0);  // Connections are made, and nobody says a word.
  ASSERT_TRUE(silent.valid());
  const int port = PortOf(silent.get());
  const std::unique_ptr<Wire> left = MakeWire(kLeft);
  const auto queued = [&left] {
    const auto all = left->traffic().all();
    const auto right = all.find("right");
    return right == all.end() ? uint64_t{99} : right->second->queued_messages.load();
  };
  left->Meet({Peer(kRight, absl::StrCat("127.0.0.1:", port, ",", port))});
  EXPECT_EQ(queued(), 0u);
  for (uint64_t number = 1; number <= 3; ++number) {
    left->Send(kRight, Message(number));
    EXPECT_EQ(queued(), number);
  }
  left->Forget(kRight);
  const absl::Time deadline = absl::Now() + kLimit;
  while (queued() != 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(queued(), 0u);
}

TEST(WireTest, NothingWaitsOnceAllHasBeenSent) {
  const std::unique_ptr<Wire> left = MakeWire(kLeft);
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  left->Meet({Peer(kRight, *address)});
  for (uint64_t number = 1; number <= 3; ++number) left->Send(kRight, Message(number));
  EXPECT_EQ(NextEvent(*right), "11 said 1");
  const absl::Time deadline = absl::Now() + kLimit;
  const auto all = left->traffic().all();
  while (all.at("right")->queued_messages.load() != 0 && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(all.at("right")->queued_messages.load(), 0u);
  EXPECT_EQ(all.at("right")->queued_rows.load(), 0u);
}

TEST(WireTest, WhatIsSaidInOneGoWaitsForTheFlushAndArrivesInOrder) {
  const std::unique_ptr<Wire> left = MakeWire(kLeft);
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  left->Meet({Peer(kRight, *address)});
  left->Send(kRight, Message(1));
  EXPECT_EQ(NextEvent(*right), "11 said 1");
  left->Cork();
  constexpr uint64_t kLast = 40;
  for (uint64_t number = 2; number <= kLast; ++number) left->Send(kRight, Message(number));
  EXPECT_EQ(right->inbox().Take().size(), 0u);
  left->Flush();
  std::vector<uint64_t> heard;
  const absl::Time deadline = absl::Now() + kLimit;
  while (heard.size() < kLast - 1 && absl::Now() < deadline) {
    for (const WireEvent& event : right->inbox().Take()) {
      heard.push_back(std::get<PeerSaid>(event).message.number);
    }
  }
  ASSERT_EQ(heard.size(), kLast - 1);
  for (uint64_t number = 2; number <= kLast; ++number) EXPECT_EQ(heard[number - 2], number);
}

TEST(WireTest, LastWordsAreHeardBeforeTheEndOfAnyStream) {
  for (int i = 0; i < 20; ++i) {
    std::unique_ptr<Wire> left = MakeWire(kLeft);
    const std::unique_ptr<Wire> right = MakeWire(kRight);
    const absl::StatusOr<std::string> to_left = left->Listen("127.0.0.1:0", "");
    const absl::StatusOr<std::string> to_right = right->Listen("127.0.0.1:0", "");
    ASSERT_TRUE(to_left.ok() && to_right.ok());
    left->Meet({Peer(kRight, *to_right)});
    right->Meet({Peer(kLeft, *to_left, kRight)});
    right->Send(kLeft, Message(1));
    EXPECT_EQ(NextEvent(*left), "22 said 1");
    constexpr uint64_t kLast = 30;
    for (uint64_t number = 1; number <= kLast; ++number) left->Send(kRight, Message(number));
    left.reset();
    std::vector<uint64_t> heard;
    bool ended = false;
    const absl::Time deadline = absl::Now() + kLimit;
    while (!ended && absl::Now() < deadline) {
      for (const WireEvent& event : right->inbox().Take()) {
        if (ended) continue;
        ended = std::holds_alternative<PeerGone>(event);
        if (!ended) heard.push_back(std::get<PeerSaid>(event).message.number);
      }
    }
    ASSERT_TRUE(ended);
    ASSERT_EQ(heard.size(), kLast);
    EXPECT_EQ(heard.back(), kLast);
  }
}

TEST(WireTest, APeerThatDoesNotAnswerHoldsNobodyUp) {
  const UniqueFd silent = TakePort(0);
  ASSERT_TRUE(silent.valid());
  const int port = PortOf(silent.get());
  std::unique_ptr<Wire> left = MakeWire(kLeft);
  left->Meet({Peer(kRight, absl::StrCat("127.0.0.1:", port, ",", port))});
  left->Send(kRight, Message(1));
  const absl::Time began = absl::Now();
  left.reset();
  EXPECT_LT(absl::Now() - began, absl::Seconds(5));
}

// Of a prepare: the counts of four experts.
StageToSend MakeCounts(const int32_t* counts) {
  StageToSend send;
  send.stage.base = reinterpret_cast<const char*>(counts);
  send.stage.rank = Rank(1);
  send.stage.said.kind = shm::Kind::kPrepare;
  send.stage.spec.num_experts = 4;
  return send;
}

TEST(WireTest, RowsThatGoAheadAreHeldAsTheyWereSentAndLandWhereTheyAreTold) {
  const std::unique_ptr<Wire> left = MakeWire(kLeft);
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  left->Meet({Peer(kRight, *address)});
  PeerMessage message;
  message.step = LeaderStep::kRows;
  message.group = GroupId(5);
  message.said.emplace_back(Rank(1), Announcement());
  int32_t counts[] = {1, 2, 3, 4};
  const int32_t sent[] = {1, 2, 3, 4};
  ASSERT_TRUE(left->SendAhead(kRight, message, MakeCounts(counts), {Rank(0)}).ok());
  counts[0] = 99;  // The stage is not read again.

  std::vector<WireEvent> events;
  const absl::Time deadline = absl::Now() + kLimit;
  while (events.empty() && absl::Now() < deadline) events = right->inbox().Take();
  ASSERT_EQ(events.size(), 1u);
  auto& said = std::get<PeerSaid>(events[0]);
  EXPECT_EQ(said.message.group, GroupId(5));
  ASSERT_TRUE(said.rows.has_value());
  const RowsName name{kLeft, GroupId(5), Formation(), OperationKey(), Rank(1)};
  right->Hold(name, *std::move(said.rows));
  RowsName another = name;
  another.from = Incarnation(33);
  right->Hold(another,
              {});  // What another worker sends in the rank's name takes the place of nothing.
  int32_t landed[] = {0, 0, 0, 0, 7};
  right->Land(name, reinterpret_cast<char*>(landed));
  EXPECT_EQ(std::memcmp(landed, sent, sizeof sent), 0);
  EXPECT_EQ(landed[4], 7);
  landed[0] = 0;
  right->Land(name, reinterpret_cast<char*>(landed));
  EXPECT_EQ(landed[0], 0) << "they are held once";
}

// What this process's client of `port` has sent there, and knows to have come.
uint64_t BytesTo(int port) {
  constexpr int kMaxFds = 1024;
  for (int fd = 0; fd < kMaxFds; ++fd) {
    sockaddr_storage peer = {};
    socklen_t length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port) != port) continue;
    tcp_info info = {};
    length = sizeof info;
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_bytes_acked;
  }
  ADD_FAILURE() << "no connection to port " << port;
  return 0;
}

// Else a part of them would wait, as a frame of its own, for the word that the others were read: a round trip.
TEST(WireTest, SmallRowsGoInOneGo) {
  const std::unique_ptr<Wire> left = MakeWire(kLeft);
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  left->Meet({Peer(kRight, *address)});
  int port = 0;
  const size_t colon = address->find(':');
  ASSERT_TRUE(absl::SimpleAtoi(address->substr(colon + 1, address->find(',') - colon - 1), &port));

  const std::vector<int32_t> counts(20'000, 1);  // 80 kB; a connection's first window is 64 KiB.
  StageToSend rows = MakeCounts(counts.data());
  rows.stage.spec.num_experts = static_cast<int32_t>(counts.size());
  PeerMessage message;
  message.step = LeaderStep::kRows;
  message.said.emplace_back(Rank(1), Announcement());
  const auto send = [&](int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(left->SendAhead(kRight, message, rows, {Rank(0)}).ok());
      const absl::Time deadline = absl::Now() + kLimit;
      while (right->inbox().Take().empty() && absl::Now() < deadline) {
        pollfd bell = {right->inbox().wakeup_fd(), POLLIN, 0};
        poll(&bell, 1, /*timeout=*/100);
      }
    }
  };
  send(100);
  const auto framed = [&left] { return left->traffic().all().at("right")->sent_bytes.load(); };
  const uint64_t framed_before = framed();
  const uint64_t before = BytesTo(port);
  constexpr int kTimes = 400;
  send(kTimes);
  // HTTP/2 has nine bytes in front of each frame, gRPC five; the rest are answers to pings.
  constexpr uint64_t kOneFrame = 9 + 5 + 6;
  EXPECT_LE(BytesTo(port) - before, framed() - framed_before + kTimes * kOneFrame);
}

TEST(WireTest, WhatARefusedStageWasAboutHasNotBeenSaid) {
  const std::unique_ptr<Wire> left = MakeWire(kLeft);
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  left->Meet({Peer(kRight, *address)});
  PeerMessage message = Message(1);
  message.group = GroupId(5);
  left->Send(kRight, message);
  message.step = LeaderStep::kRows;
  message.group = GroupId(6);
  const int32_t counts[] = {1, 2, 3, 4};
  StageToSend damaged = MakeCounts(counts);
  damaged.stage.said.kind = shm::Kind::kDispatch;  // And of no bytes.
  EXPECT_TRUE(absl::IsDataLoss(left->SendAhead(kRight, message, damaged, {Rank(0)})));
  for (const uint64_t group : {6, 6, 5}) {
    message = Message(2);
    message.group = GroupId(group);
    left->Send(kRight, message);
  }
  std::vector<uint64_t> heard;
  const absl::Time deadline = absl::Now() + kLimit;
  while (heard.size() < 4 && absl::Now() < deadline) {
    for (const WireEvent& event : right->inbox().Take()) {
      heard.push_back(std::get<PeerSaid>(event).message.group.value);
    }
  }
  EXPECT_THAT(heard, ::testing::ElementsAre(5, 6, 6, 5));
}

TEST(WireTest, AStrangerIsRefusedAndItsMessagesReachNobody) {
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  // Who knows the worker's number and address, and no secret; and a worker that has another one's secret.
  for (const PeerWorker& peer :
       {Peer(kRight, *address, kLeft, "guessed"), Peer(kRight, *address, Incarnation(33))}) {
    const std::unique_ptr<Wire> stranger = MakeWire(kLeft);
    stranger->Meet({peer});
    stranger->Send(kRight, Message(7));
    EXPECT_THAT(NextEvent(*stranger), HasSubstr("does not know what the formation told both"));
  }
  const std::unique_ptr<Wire> friendly = MakeWire(kLeft);
  friendly->Meet({Peer(kRight, *address)});
  friendly->Send(kRight, Message(8));
  EXPECT_EQ(NextEvent(*right), "11 said 8") << "and not 7";
}

// A caller that says what it likes: `hello` in the metadata, then `first`.
grpc::Status Call(const std::string& address, const v1::WireHello& hello, std::string first) {
  grpc::GenericStub stub(grpc::CreateChannel(address.substr(0, address.find(',')),
                                             grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  context.AddMetadata(kHelloKey, hello.SerializeAsString());
  const auto stream = stub.PrepareCall(&context, kWireMethod, &queue);
  void* tag = nullptr;
  bool ok = false;
  stream->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(first);
  stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  stream->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return status;
}

template <typename Proto>
std::string Buffer(FrameKind kind, const Proto& proto) {
  std::string bytes(sizeof kind, '\0');
  std::memcpy(bytes.data(), &kind, sizeof kind);
  return bytes + proto.SerializeAsString();
}

TEST(WireTest, RowsAndMessagesBeforeAProofAndWrongProofsEndTheStream) {
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  char region[16] = "...............";
  const PeerOperation operation{GroupId(1), Formation(1), 1};
  right->Open(operation, sizeof region, {{Rank(1), {region, kLeft}}});
  v1::WireHello hello;
  hello.set_version(kWireVersion);
  hello.set_node("n11");
  hello.set_from(kLeft.value);
  hello.set_to(kRight.value);
  hello.set_stream_kind(kExpressStream);

  RowsFrame rows;
  rows.group = rows.formation = rows.number = 1;
  rows.rank = 1;
  rows.total = 3;
  rows.num_pieces = 1;
  const RowsPiece piece{.offset = 0, .bytes = 3};
  std::string frame(sizeof rows + sizeof piece, '\0');
  std::memcpy(frame.data(), &rows, sizeof rows);
  std::memcpy(frame.data() + sizeof rows, &piece, sizeof piece);
  EXPECT_EQ(Call(*address, hello, frame + "xxx").error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_STREQ(region, "...............");
  EXPECT_THAT(NextEvent(*right), HasSubstr("got a buffer of kind 3 that has no place here"));

  EXPECT_EQ(Call(*address, hello, Buffer(FrameKind::kMessage, v1::WireMessage())).error_code(),
            grpc::INVALID_ARGUMENT);
  EXPECT_THAT(NextEvent(*right), HasSubstr("got a buffer of kind 2 that has no place here"));
  v1::WireHello proof;
  EXPECT_EQ(Call(*address, hello, Buffer(FrameKind::kHello, proof)).error_code(),
            grpc::UNAUTHENTICATED);
  EXPECT_THAT(NextEvent(*right), HasSubstr("refused: a stream at ipv4:127.0.0.1:"));
  proof.set_proof(
      ProofOfStream(SecretOfPair(kSecret, kLeft, kRight), hello.SerializeAsString(), "x"));
  EXPECT_EQ(Call(*address, hello, Buffer(FrameKind::kHello, proof)).error_code(),
            grpc::UNAUTHENTICATED)
      << "a proof of another stream";
  hello.set_to(23);
  EXPECT_EQ(Call(*address, hello, Buffer(FrameKind::kHello, proof)).error_code(),
            grpc::UNAUTHENTICATED);
}

TEST(WireTest, AnotherVersionIsRefusedWithWhatToDoAmongNodesAndOnOne) {
  const std::unique_ptr<Wire> right = MakeWire(kRight);
  const absl::StatusOr<std::string> address = right->Listen("127.0.0.1:0", "");
  ASSERT_TRUE(address.ok()) << address.status();
  v1::WireHello hello;
  hello.set_version(kWireVersion + 1);
  hello.set_from(kLeft.value);
  hello.set_to(kRight.value);
  hello.set_stream_kind(kExpressStream);
  const std::string theirs = absl::StrCat(kWireVersion + 1);
  hello.set_node("n11");
  EXPECT_EQ(Call(*address, hello, "").error_message(),
            absl::StrCat("node n11 speaks version ", theirs,
                         " of the protocol between workers, node n22 version ", kWireVersion,
                         "; run one version of epd on all nodes"));
  hello.set_node("n22");
  EXPECT_EQ(Call(*address, hello, "").error_message(),
            absl::StrCat("two workers of node n22 speak versions ", theirs, " and ", kWireVersion,
                         " of the protocol between workers; restart epd there"));
}

TEST(WireTest, SecondPortThatIsTakenIsNamedAndWhatToDo) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    // The kernel's choice, and somebody else's server behind it.
    UniqueFd first = TakePort(0);
    const int port = PortOf(first.get());
    const UniqueFd second = TakePort(port + 1);
    if (!second.valid()) continue;
    first.reset();
    const std::unique_ptr<Wire> wire = MakeWire(kLeft);
    const absl::Status refused = wire->Listen(absl::StrCat("127.0.0.1:", port), "").status();
    if (absl::StrContains(refused.message(), absl::StrCat(":", port, "'"))) continue;  // A race.
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(
        std::string(refused.message()),
        AllOf(HasSubstr(absl::StrCat("'127.0.0.1:", port + 1, "'")),
              HasSubstr("large rows come in at the port behind wire_listen's"),
              HasSubstr("give wire_listen a port that is free and whose next one is, too")));
    return;
  }
  FAIL() << "no two ports in a row were free";
}

TEST(WireTest, PortThatIsTakenIsNamedAndWhatToDo) {
  const UniqueFd taken = TakePort(0);
  const std::unique_ptr<Wire> wire = MakeWire(kLeft);
  const std::string address = absl::StrCat("127.0.0.1:", PortOf(taken.get()));
  const absl::Status refused = wire->Listen(address, "").status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(absl::StrCat("'", address, "' (wire_listen)")),
                    HasSubstr("give wire_listen a port that is free")));
}

TEST(UrgentSocketTest, OnlyConnectionsWithThePeerAreMarked) {
  for (const bool with_ipv6 : {false, true}) {
    const int family = with_ipv6 ? AF_INET6 : AF_INET;
    const UniqueFd listener(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in6 any6 = {};
    any6.sin6_family = AF_INET6;
    any6.sin6_addr = in6addr_loopback;
    const sockaddr_in any4 = Loopback(0);
    const auto* any = with_ipv6 ? reinterpret_cast<const sockaddr*>(&any6)
                                : reinterpret_cast<const sockaddr*>(&any4);
    const socklen_t length = with_ipv6 ? sizeof any6 : sizeof any4;
    if (bind(listener.get(), any, length) != 0) {
      ASSERT_TRUE(with_ipv6) << "no IPv4 loopback";
      continue;  // This machine has no IPv6.
    }
    ASSERT_EQ(listen(listener.get(), 1), 0);
    const UniqueFd client(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage server = {};
    socklen_t size = sizeof server;
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&server), &size);
    ASSERT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&server), size), 0);
    const UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const int port = PortOf(listener.get());
    const std::string host = with_ipv6 ? "ipv6:%5B::1%5D:" : "ipv4:127.0.0.1:";
    EXPECT_EQ(MarkUrgent(absl::StrCat(host, port == 1 ? 2 : 1)), 0);
    EXPECT_EQ(MarkUrgent("unix:/tmp/x"), 0);
    EXPECT_EQ(CountConnections(port).marked, 0);
    EXPECT_EQ(MarkUrgent(absl::StrCat(host, port)), 1);
    int option = 0;
    size = sizeof option;
    getsockopt(client.get(), with_ipv6 ? IPPROTO_IPV6 : IPPROTO_IP,
               with_ipv6 ? IPV6_TCLASS : IP_TOS, &option, &size);
    EXPECT_EQ(option, kUrgentTrafficClass);
    getsockopt(accepted.get(), SOL_SOCKET, SO_PRIORITY, &option, &size);
    EXPECT_NE(option, kUrgentPriority) << "its peer is another one";
  }
}

TEST(WireTest, AThreadThatCannotBeHadIsAnErrorOfListening) {
  const std::unique_ptr<Wire> whole = MakeWire(kLeft);  // gRPC has its own threads from now on.
  for (const int left : {0, 1, 2}) {
    epd::testing::g_threads_left = left;
    const std::unique_ptr<Wire> wire = MakeWire(kRight);
    epd::testing::g_threads_left = -1;
    const absl::Status listening = wire->Listen("127.0.0.1:0", "").status();
    EXPECT_EQ(listening.code(), absl::StatusCode::kResourceExhausted) << left;
    EXPECT_THAT(std::string(listening.message()), HasSubstr("no thread 'wire-")) << left;
  }
  EXPECT_TRUE(whole->Listen("127.0.0.1:0", "").ok());
}

}  // namespace
}  // namespace epd
