// Goal: what one worker says is what the other one hears, whatever was said before; what is the same again is left out.
#include "daemon/worker/peer_streams/peer_message_codec.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/epd/v1/limits.h"

namespace epd {
namespace {

PeerMessage About(uint64_t group, uint32_t ordinal, uint8_t program = 7) {
  PeerMessage message;
  message.step = LeaderStep::kAnnounce;
  message.group = GroupId(group);
  message.formation = Formation(2);
  message.clock = 99;
  message.key.execution.program.fill(program);
  message.key.execution.number = 1234;
  message.key.ordinal = ordinal;
  message.key.occurrence = 1;
  message.key.named = true;
  message.name = "layer 3";
  return message;
}

// Both ends of one stream.
struct Stream {
  LastSubject said;
  LastSubject heard;
  size_t bytes = 0;  // Of the last one.

  std::optional<PeerMessage> Pass(const PeerMessage& message) {
    const v1::WireMessage proto = ToProto(message, said);
    const std::string text = proto.SerializeAsString();
    bytes = text.size();
    v1::WireMessage came;
    EXPECT_TRUE(came.ParseFromString(text));
    return FromProto(came, heard);
  }
};

TEST(PeerMessageCodecTest, EachMessageIsHeardWithItsSubjectWhateverWasSaidBefore) {
  const std::vector<PeerMessage> all = {About(1, 1), About(1, 1),    About(1, 2),
                                        About(2, 2), About(2, 2),    About(1, 1),
                                        {},          About(1, 1, 8), About(1, 1)};
  Stream stream;
  for (const PeerMessage& message : all) {
    const std::optional<PeerMessage> heard = stream.Pass(message);
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->group, message.group);
    EXPECT_EQ(heard->formation, message.formation);
    EXPECT_EQ(heard->key, message.key);
    EXPECT_EQ(heard->name, message.name);
    EXPECT_EQ(heard->clock, message.clock);
    EXPECT_TRUE(heard->cause.ok());
  }
  stream.Pass(About(5, 5));
  const size_t whole = stream.bytes;
  stream.Pass(About(5, 5));
  EXPECT_LE(stream.bytes + 25, whole);
}

TEST(PeerMessageCodecTest, ASubjectThatIsSaidNeitherNowNorBeforeIsNoMessage) {
  Stream stream;
  stream.Pass(About(1, 1));
  const v1::WireMessage same = ToProto(About(1, 1), stream.said);
  ASSERT_TRUE(same.same_subject());
  LastSubject another_stream;
  EXPECT_FALSE(FromProto(same, another_stream).has_value());
  v1::WireMessage both = same;
  both.set_program(std::string(16, 'p'));
  EXPECT_FALSE(FromProto(both, stream.heard).has_value());
  EXPECT_TRUE(FromProto(same, stream.heard).has_value());
}

TEST(PeerMessageCodecTest, RanksThatSayTheSameTakeFewBytesAndAreHeardAsTheySaid) {
  const Announcement first{.dtype = 2,
                           .has_weights = 1,
                           .top_k = 4,
                           .alignment = 1,
                           .row_bytes = 4096,
                           .plan_id = 4711,
                           .spec_hash = 0x9e3779b97f4a7c15,
                           .kind = shm::Kind::kDispatch,
                           .num_tokens = 8,
                           .recv_capacity = 40,
                           .demand = 31,
                           .stage_bytes = 33'000,
                           .out_bytes = 160'000,
                           .eager_buffer = 2};
  Announcement third = first;
  third.kind = shm::Kind::kCombine;
  third.dtype = third.has_weights = third.top_k = third.alignment = 0;
  third.row_bytes = third.plan_id = third.spec_hash = third.num_tokens = 0;
  third.recv_capacity = third.demand = third.stage_bytes = third.out_bytes = 0;
  third.eager_buffer.reset();
  third.from_stream = true;
  PeerMessage message = About(1, 1);
  message.said = {{Rank(5), first}};
  Stream stream;
  stream.Pass(message);
  const size_t one = stream.bytes;
  message.said = {{Rank(5), first}, {Rank(6), first}};
  stream.said.reset();
  stream.Pass(message);
  EXPECT_LE(stream.bytes, one + 5);  // What says that there is one, and its number.
  message.said = {{Rank(5), first}, {Rank(6), first}, {Rank(7), third}, {Rank(8), first}};
  const std::optional<PeerMessage> heard = stream.Pass(message);
  ASSERT_TRUE(heard.has_value());
  ASSERT_EQ(heard->said.size(), message.said.size());
  for (size_t i = 0; i < message.said.size(); ++i) {
    const auto& [rank, said] = message.said[i];
    const Announcement& got = heard->said[i].second;
    EXPECT_EQ(heard->said[i].first, rank);
    EXPECT_EQ(got.dtype, said.dtype);
    EXPECT_EQ(got.has_weights, said.has_weights);
    EXPECT_EQ(got.top_k, said.top_k);
    EXPECT_EQ(got.alignment, said.alignment);
    EXPECT_EQ(got.row_bytes, said.row_bytes);
    EXPECT_EQ(got.plan_id, said.plan_id);
    EXPECT_EQ(got.spec_hash, said.spec_hash);
    EXPECT_EQ(got.kind, said.kind);
    EXPECT_EQ(got.num_tokens, said.num_tokens);
    EXPECT_EQ(got.recv_capacity, said.recv_capacity);
    EXPECT_EQ(got.demand, said.demand);
    EXPECT_EQ(got.stage_bytes, said.stage_bytes);
    EXPECT_EQ(got.out_bytes, said.out_bytes);
    EXPECT_EQ(got.eager_buffer.has_value(), said.eager_buffer.has_value());
    EXPECT_EQ(got.from_stream, said.from_stream);
  }
}

TEST(PeerMessageCodecTest, TokensAreHeardInTheirOrderAndNoMoreThanAGroupCanHave) {
  PeerMessage message = About(1, 1);
  message.step = LeaderStep::kIssue;
  message.tokens = {3, 0, 4096, 0};
  Stream stream;
  EXPECT_EQ(stream.Pass(message)->tokens, message.tokens);
  message.tokens.clear();
  EXPECT_TRUE(stream.Pass(message)->tokens.empty());
  message.tokens.resize(size_t{limits::kPlanRanks} * limits::kPlanRanks + 1);
  EXPECT_FALSE(stream.Pass(message).has_value());
}

TEST(PeerMessageCodecTest, ACauseIsHeardWhereThereIsOne) {
  PeerMessage message = About(1, 1);
  message.cause = absl::DataLossError("damaged");
  Stream stream;
  EXPECT_EQ(stream.Pass(message)->cause, message.cause);
}

}  // namespace
}  // namespace epd
