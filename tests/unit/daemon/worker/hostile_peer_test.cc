// Goal: whatever somebody sends to the port where a worker takes other nodes' streams, only that stream ends, the log
// says whose it was and why, and the peers of the group are heard as before.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/tls/wire_secret.h"
#include "daemon/worker/peer_streams/frame.h"
#include "daemon/worker/peer_streams/stream_proof.h"
#include "daemon/worker/peer_streams/wire.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/segment.h"
#include "proto/epd/v1/wire.pb.h"

namespace epd {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(30);
constexpr Incarnation kSelf(11);
constexpr Incarnation kPeer(22);
constexpr const char* kSecret = "of each worker here";

std::string Framed(uint32_t kind, const std::string& body) {
  std::string bytes(sizeof kind, '\0');
  std::memcpy(bytes.data(), &kind, sizeof kind);
  return bytes + body;
}

std::string HelloOf(const std::string& node) {
  v1::WireHello hello;
  hello.set_version(kWireVersion);
  hello.set_node(node);
  hello.set_from(kPeer.value);
  hello.set_to(kSelf.value);
  hello.set_stream_kind(kExpressStream);
  return hello.SerializePartialAsString();
}

// What one stream says; the worker that takes it says how it ends.
class RawStream {
 public:
  explicit RawStream(const std::string& address, const std::string& node = "n1")
      : hello_(HelloOf(node)),
        stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kLimit));
    context_.AddMetadata(kHelloKey, hello_);
    stream_ = stub_.PrepareCall(&context_, kWireMethod, &queue_);
    stream_->StartCall(this);
    Next();
    stream_->ReadInitialMetadata(this);
    Next();
  }
  ~RawStream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  // As one who knows the secret.
  void Greet() {
    const auto& metadata = context_.GetServerInitialMetadata();
    const auto challenge = metadata.find(kChallengeKey);
    ASSERT_NE(challenge, metadata.end());
    v1::WireHello proof;
    proof.set_proof(ProofOfStream(SecretOfPair(kSecret, kPeer, kSelf), hello_,
                                  {challenge->second.data(), challenge->second.size()}));
    Send(Framed(static_cast<uint32_t>(FrameKind::kHello), proof.SerializeAsString()));
  }
  void Send(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    stream_->Write(grpc::ByteBuffer(&slice, 1), this);
    Next();
  }
  grpc::Status End() {
    grpc::Status status;
    stream_->Finish(&status, this);
    Next();
    return status;
  }

 private:
  void Next() {
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }

  const std::string hello_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

std::string Message(int num_said) {
  v1::WireMessage message;
  message.set_step(static_cast<uint32_t>(LeaderStep::kAnnounce));
  message.set_program(std::string(16, 'p'));
  for (int i = 0; i < num_said; ++i) message.add_said();
  return Framed(static_cast<uint32_t>(FrameKind::kMessage), message.SerializeAsString());
}

class HostilePeerTest : public testing::Test {
 protected:
  HostilePeerTest() {
    address_ = wire_.Listen("127.0.0.1:0", "").value();
    address_ = address_.substr(0, address_.rfind(','));  // The port of messages.
  }

  // What the exec thread hears next of streams.
  std::string NextEvent() {
    const absl::Time deadline = absl::Now() + kLimit;
    while (events_.empty() && absl::Now() < deadline) {
      pollfd bell = {wire_.inbox().wakeup_fd(), POLLIN, 0};
      poll(&bell, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline - absl::Now())));
      for (const WireEvent& event : wire_.inbox().Take()) events_.push_back(Shown(event));
    }
    if (events_.empty()) return "nothing";
    const std::string first = events_.front();
    events_.erase(events_.begin());
    return first;
  }
  static std::string Shown(const WireEvent& event) {
    if (const auto* said = std::get_if<PeerSaid>(&event)) {
      return absl::StrCat("said of ", said->message.said.size(), " ranks");
    }
    if (const auto* gone = std::get_if<PeerGone>(&event)) {
      return absl::StrCat("gone: ", gone->cause.message());
    }
    if (const auto* refused = std::get_if<PeerRefused>(&event)) {
      return absl::StrCat("refused: ", refused->why.message());
    }
    return "rows";
  }

  Wire wire_{{.node = "n0", .self = kSelf, .tls = {}, .secret = kSecret}};
  std::string address_;
  std::vector<std::string> events_;
};

TEST_F(HostilePeerTest, WhoeverDoesNotBeginWithAHelloIsRefusedAndNamed) {
  RawStream peer(address_);
  peer.Greet();
  for (const std::string& bytes : {std::string(), std::string("x"), Framed(1, "\xff\xff\xff"),
                                   Framed(2, ""), Framed(3, ""), Framed(99, "x"), Message(1)}) {
    RawStream stranger(address_);
    stranger.Send(bytes);
    EXPECT_EQ(stranger.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(NextEvent(), HasSubstr("refused: a stream from ipv4:127.0.0.1:"));
  }
  RawStream flood(address_);
  flood.Send(Framed(1, std::string(17 << 20, 'x')));
  EXPECT_EQ(flood.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  peer.Send(Message(2));
  EXPECT_EQ(NextEvent(), "said of 2 ranks");
}

TEST_F(HostilePeerTest, APeerThatSaysWhatIsNoMessageIsLostAndTheCauseSaysWhy) {
  v1::WireMessage no_step;
  no_step.set_program(std::string(16, 'p'));
  v1::WireMessage no_program;
  no_program.set_step(1);
  const std::string rows = Framed(3, std::string(sizeof(RowsFrame) - 4, '\xff'));
  for (const std::string& bytes :
       {Framed(2, "\xff"), Framed(2, no_step.SerializeAsString()),
        Framed(2, no_program.SerializeAsString()), Message(limits::kPlanRanks + 1), Framed(1, ""),
        rows, Framed(3, "short")}) {
    RawStream peer(address_);
    peer.Greet();
    peer.Send(bytes);
    EXPECT_EQ(peer.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(NextEvent(), HasSubstr("gone: its stream was refused: got "));
  }
  RawStream peer(address_);
  peer.Greet();
  peer.Send(Message(limits::kPlanRanks));
  EXPECT_EQ(NextEvent(), absl::StrCat("said of ", limits::kPlanRanks, " ranks"));
}

v1::WireRowsAhead HeadOf(const RowsPiece& piece, uint32_t num_said = 1,
                         LeaderStep step = LeaderStep::kRows) {
  v1::WireRowsAhead head;
  head.mutable_message()->set_step(static_cast<uint32_t>(step));
  head.mutable_message()->set_program(std::string(16, 'p'));
  for (uint32_t i = 0; i < num_said; ++i) head.mutable_message()->add_said();
  head.add_pieces(piece.offset);
  head.add_pieces(piece.bytes);
  return head;
}

// Of rows ahead of an announce, which are four bytes.
std::string BufferOf(const v1::WireRowsAhead& head) {
  const std::string text = head.SerializeAsString();
  const RowsAheadFrame frame{.head_bytes = static_cast<uint32_t>(text.size())};
  return std::string(reinterpret_cast<const char*>(&frame), sizeof frame) + text + "rows";
}
std::string RowsAhead(const RowsPiece& piece, uint32_t num_said = 1,
                      LeaderStep step = LeaderStep::kRows) {
  return BufferOf(HeadOf(piece, num_said, step));
}

// Heads that mean nothing.
std::vector<std::string> SenselessRowsAhead() {
  constexpr uint64_t kEnd = shm::kEagerBufferBytes;
  std::vector<v1::WireRowsAhead> heads(9, HeadOf({0, 4}));
  heads[0].add_pieces(0);  // Half a piece.
  heads[1].set_bytes_of_table(std::string(kEnd + 1, 't'));
  heads[2].set_bytes_of_table(std::string(kEnd - 3, 't'));  // No room for the rows behind it.
  heads[3].mutable_table()->add_route_rows(1);              // Without a slot.
  for (uint64_t i = 0; i < kEnd / 12; ++i) {
    heads[4].mutable_table()->add_route_rows(1);
    heads[4].mutable_table()->add_route_slots(1);
  }
  heads[5].mutable_table()->mutable_routes_to()->Resize(limits::kPlanRanks + 1, 0);
  heads[6].mutable_table()->add_route_weights(1);  // Of no route.
  heads[7].clear_pieces();
  heads[8].mutable_message()->clear_program();
  heads[8].mutable_message()->set_same_subject(true);  // As none before.
  std::vector<std::string> all;
  for (const v1::WireRowsAhead& head : heads) all.push_back(BufferOf(head));
  const RowsAheadFrame endless{.head_bytes = UINT32_MAX};
  all.emplace_back(reinterpret_cast<const char*>(&endless), sizeof endless);
  return all;
}

std::string Several(const std::vector<std::string>& buffers) {
  std::string body;
  for (const std::string& buffer : buffers) {
    const auto bytes = static_cast<uint32_t>(buffer.size());
    body.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    body += buffer;
  }
  return Framed(static_cast<uint32_t>(FrameKind::kSeveral), body);
}

TEST_F(HostilePeerTest, RowsAheadThatFitIntoNoEagerBufferAndBuffersThatAreCutEndTheirStream) {
  constexpr uint64_t kEnd = shm::kEagerBufferBytes;
  const std::string good = RowsAhead({kEnd - 4, 4});
  std::vector<std::string> refused = SenselessRowsAhead();
  v1::WireMessage without_rows;
  without_rows.set_step(static_cast<uint32_t>(LeaderStep::kRows));
  without_rows.set_program(std::string(16, 'p'));
  for (const std::string& bytes :
       {RowsAhead({kEnd - 3, 4}), RowsAhead({0, UINT64_MAX}), RowsAhead({UINT64_MAX - 1, 4}),
        RowsAhead({0, kEnd + 1}), RowsAhead({0, 0}), RowsAhead({0, 5}), RowsAhead({0, 3}),
        RowsAhead({0, 4}, 0), RowsAhead({0, 4}, 2), RowsAhead({0, 4}, 1, LeaderStep::kAnnounce),
        good.substr(0, 12), Framed(2, without_rows.SerializeAsString()), Framed(5, "abc"),
        Several({good, "x"}), Several({good, Several({good})}),
        Several({good}).substr(0, good.size())}) {
    refused.push_back(bytes);
  }
  for (const std::string& bytes : refused) {
    RawStream peer(address_);
    peer.Greet();
    peer.Send(bytes);
    EXPECT_EQ(peer.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    std::string event = NextEvent();
    if (event == "said of 1 ranks") event = NextEvent();  // What stood before the cut.
    EXPECT_THAT(event, HasSubstr("gone: its stream was refused: got "));
  }
  RawStream peer(address_);
  peer.Greet();
  peer.Send(Several({good, Message(2)}));
  EXPECT_EQ(NextEvent(), "said of 1 ranks");
  EXPECT_EQ(NextEvent(), "said of 2 ranks");
  v1::WireRowsAhead again = HeadOf({0, 4});
  again.mutable_message()->clear_program();
  again.mutable_message()->set_same_subject(true);
  peer.Send(BufferOf(again));
  EXPECT_EQ(NextEvent(), "said of 1 ranks");
}

TEST_F(HostilePeerTest, ALongNameIsCutInWhatIsShownAndOneOf300KiloBytesIsNotHeard) {
  RawStream peer(address_, std::string(1000, 'n'));
  peer.Greet();
  peer.Send(Message(1));
  EXPECT_EQ(NextEvent(), "said of 1 ranks");
  EXPECT_TRUE(wire_.traffic().all().contains(std::string(limits::kNameBytes, 'n')));
  RawStream longer(address_, std::string(300'000, 'n'));
  EXPECT_FALSE(longer.End().ok());
  RawStream garbled(address_, "\xc3");
  // Or the stream's end is told before its status can be read.
  EXPECT_THAT(garbled.End().error_code(),
              AnyOf(grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::UNAVAILABLE));
}

TEST(TrafficTest, NamesThatPeersMakeUpHaveAnEnd) {
  Traffic traffic;
  const auto first = traffic.Of("n0");
  for (size_t i = 1; i < Traffic::kMaxNodes; ++i) traffic.Of(absl::StrCat("n", i));
  EXPECT_EQ(traffic.Of("one more"), traffic.Of("and another"));
  EXPECT_EQ(traffic.Of("n0"), first);
  EXPECT_EQ(traffic.all().size(), Traffic::kMaxNodes + 1);
  EXPECT_TRUE(traffic.all().contains(Traffic::kOthers));
}

}  // namespace
}  // namespace epd
