// Goal: what two workers say round the rows of a small operation leaves room for the packets' own headers within 1 KiB, and
// what is left out on the way is there again when it is read.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "daemon/worker/peer_streams/held_rows.h"
#include "daemon/worker/peer_streams/peer_message_codec.h"
#include "kernels/gather_reduce_rows.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

// 8 tokens x 2048, top-4, two ranks on each of two nodes.
constexpr int kRanks = 4;
constexpr int kExperts = 32;
constexpr int kTokens = 8;
constexpr int kTopK = 4;
constexpr uint64_t kRowBytes = 4096;
constexpr int64_t kCapacity = 64;
// Numbers of these are drawn at random, and take as many bytes as they can.
constexpr GroupId kGroup(824125669352861130);
constexpr PlanIds kIds = {kGroup.value, 1, 7995212051070844929};

// Seven packets of some 66 bytes of Ethernet, IP and TCP (rows of more than a segment, acknowledgements), and what gRPC and
// HTTP/2 have in front of a buffer.
constexpr uint64_t kMaxBytes = 1024 - uint64_t{7} * 66 - 5 - 9;

struct alignas(64) Line {
  char bytes[64];
};
using Memory = std::vector<Line>;

struct Staged {
  Memory memory;
  Announcement said;
};

class WireBytesTest : public testing::Test {
 protected:
  WireBytesTest() {
    spec_.num_ranks = kRanks;
    spec_.num_experts = kExperts;
    spec_.top_k = kTopK;
    spec_.alignment = 1;
    spec_.max_tokens = kTokens;
    std::mt19937 random(7);
    for (std::vector<int32_t>& indices : topk_) {
      // Each token has two experts on each node, so each row crosses.
      for (int i = 0; i < kTokens * kTopK; ++i) {
        constexpr int kPerNode = kExperts / 2;
        const int other = i % 2 == 0 ? -1 : indices[static_cast<size_t>(i) - 1];
        int32_t expert = other;
        while (expert == other) {
          expert = static_cast<int32_t>(random() % kPerNode) + (i % kTopK / 2) * kPerNode;
        }
        indices.push_back(expert);
      }
    }
    std::vector<int32_t> counts(static_cast<size_t>(kRanks) * kExperts);
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(CountRoutes(spec_, Topk(r), &counts[static_cast<size_t>(r) * kExperts]).ok());
    }
    for (int r = 0; r < kRanks; ++r) {
      const uint64_t bytes = RoutingPlanBytes(spec_);
      plan_memory_.emplace_back(bytes / sizeof(Line) + 1);
      std::vector<int32_t> zones(kExperts);
      int32_t total = 0;
      EXPECT_TRUE(BuildRoutingPlan({.spec = spec_,
                                    .rank = r,
                                    .ids = kIds,
                                    .topk = Topk(r),
                                    .counts = counts.data(),
                                    .plan = plan_memory_.back().data(),
                                    .plan_bytes = bytes,
                                    .token_counts = zones.data(),
                                    .total_recv = &total})
                      .ok());
      plans_.emplace_back();
      EXPECT_TRUE(
          ViewRoutingPlan({plan_memory_.back().data(), bytes, spec_, r, kIds}, &plans_.back())
              .ok());
    }
  }

  TopkIndices Topk(int rank) const {
    return {.data = topk_[rank].data(), .type = IndexType::kInt32, .num_tokens = kTokens};
  }

  Announcement Said(shm::Kind kind, uint64_t stage_bytes) const {
    return {.dtype = 2,
            .has_weights = kind == shm::Kind::kDispatch ? 1u : 0u,
            .top_k = kTopK,
            .alignment = 1,
            .row_bytes = kRowBytes,
            .plan_id = kIds.plan_id,
            .spec_hash = 0x9e3779b97f4a7c15,
            .kind = kind,
            .num_tokens = kTokens,
            .recv_capacity = 40,
            .demand = kind == shm::Kind::kDispatch ? 32u : 0u,
            .stage_bytes = stage_bytes,
            .eager_buffer = 3};
  }

  Staged Dispatch(int r) const {
    const uint64_t bytes = ScatterStageBytes({kTokens, plans_[r].num_routes, kRanks, kRowBytes});
    Staged staged{Memory(bytes / sizeof(Line) + 1), Said(shm::Kind::kDispatch, bytes)};
    std::vector<float> weights(static_cast<size_t>(kTokens) * kTopK);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = 1.0F / static_cast<float>(3 + i);
    const std::vector<char> rows(kTokens * kRowBytes, static_cast<char>('a' + r));
    StageScatterArgs args;
    args.plan = &plans_[r];
    args.rows = rows.data();
    args.weights = weights.data();
    args.num_tokens = kTokens;
    args.row_bytes = kRowBytes;
    args.stage = staged.memory.data();
    args.stage_bytes = bytes;
    EXPECT_TRUE(StageScatter(args).ok());
    return staged;
  }

  Staged Combine(int r) const {
    const uint64_t stage_bytes = shm::RoundUpToRegionAlignment(
        GatherStageBytes({TotalRecv(spec_, plans_[r].counts, r), kRowBytes, false}));
    std::vector<int32_t> counts;
    for (int source = 0; source < kRanks; ++source) {
      for (int e = 0; e < kExperts; ++e) {
        if (ExpertOwner(spec_, e) == r)
          counts.push_back(RowsOf(spec_, plans_[r].counts, source, e));
      }
    }
    const uint64_t bytes = stage_bytes + shm::CountsBytes(kRanks, counts.size() / kRanks);
    Staged staged{Memory(bytes / sizeof(Line) + 1), Said(shm::Kind::kCombine, bytes)};
    const std::vector<char> rows(kCapacity * kRowBytes, static_cast<char>('a' + r));
    StageGatherArgs args;
    args.plan = &plans_[r];
    args.rows = rows.data();
    args.capacity = kCapacity;
    args.row_bytes = kRowBytes;
    args.stage = staged.memory.data();
    args.stage_bytes = stage_bytes;
    EXPECT_TRUE(StageGather(args).ok());
    std::memcpy(reinterpret_cast<char*>(staged.memory.data()) + stage_bytes, counts.data(),
                counts.size() * sizeof(int32_t));
    return staged;
  }

  // Of the `ordinal`th operation of an execution.
  static PeerMessage About(LeaderStep step, uint32_t ordinal) {
    PeerMessage message;
    message.step = step;
    message.group = kGroup;
    message.formation = Formation(2);
    for (size_t i = 0; i < message.key.execution.program.size(); ++i) {
      message.key.execution.program[i] = static_cast<uint8_t>(200 - i);
    }
    message.key.execution.number = 1234;
    message.key.ordinal = ordinal;
    message.key.named = true;
    return message;
  }

  // What the worker of ranks 2 and 3 sends for an operation, without the rows: of each rank a buffer with them, then its
  // announce.
  struct Sent {
    uint64_t rows_ahead = 0;
    uint64_t announce = 0;
    uint64_t decided = 0;  // What the other one, who leads, says behind its own rows.
    uint64_t joined = 0;   // Its buffers in one.
    uint64_t from_other() const { return rows_ahead + announce + joined; }
    uint64_t from_leader() const { return rows_ahead + decided + joined; }
  };

  Sent SendTwoRanks(uint32_t ordinal, const std::vector<Staged>& staged) {
    Sent sent{.joined = 4 + 3 * 4};
    PeerMessage announce = About(LeaderStep::kAnnounce, ordinal);
    announce.name = "name=layer.dispatch";
    for (int i = 0; i < 2; ++i) {
      const Rank rank(static_cast<uint32_t>(2 + i));
      PeerMessage message = About(LeaderStep::kRows, ordinal);
      message.said.emplace_back(rank, Announcement());
      announce.said.emplace_back(rank, staged[i].said);
      const PublishedStage stage{.base = reinterpret_cast<const char*>(staged[i].memory.data()),
                                 .said = staged[i].said,
                                 .rank = rank,
                                 .spec = spec_};
      const std::vector<Rank> to = {Rank(0), Rank(1)};
      const auto buffer = FrameRowsAhead(message, stage, to, said_);
      EXPECT_TRUE(buffer.ok()) << buffer.status();
      const auto image = MakeImage(stage, to);
      EXPECT_TRUE(image.ok()) << image.status();
      if (!buffer.ok() || !image.ok()) return sent;
      sent.rows_ahead += buffer->Length() - (image->bytes - image->made.size());
      ExpectSame(*buffer, *image, message);
    }
    const v1::WireMessage proto = ToProto(announce, said_);
    sent.announce = 4 + proto.ByteSizeLong();
    const auto read = FromProto(proto, heard_);
    EXPECT_TRUE(read.has_value() && read->key == announce.key && read->said.size() == 2);
    PeerMessage decided = About(LeaderStep::kDecided, ordinal);
    decided.number = kIds.plan_id + 3;
    LastSubject said = said_;
    sent.decided = 4 + ToProto(decided, said).ByteSizeLong();
    return sent;
  }

  // Whoever reads `buffer` lands what `image` says.
  void ExpectSame(const grpc::ByteBuffer& buffer, const StageImage& image,
                  const PeerMessage& message) {
    BufferReader reader(buffer);
    const std::optional<RowsMessage> read = ReadRowsAhead(reader, heard_);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->message.key, message.key);
    EXPECT_EQ(read->message.said[0].first, message.said[0].first);
    std::vector<char> landed(shm::kEagerBufferBytes, 'x');
    std::vector<char> wanted = landed;
    read->rows.Land(landed.data());
    size_t made = 0;
    for (const ImagePiece& piece : image.pieces) {
      const char* from = piece.from != nullptr ? piece.from : image.made.data() + made;
      if (piece.from == nullptr) made += piece.bytes;
      std::memcpy(wanted.data() + piece.offset, from, piece.bytes);
    }
    EXPECT_EQ(landed, wanted);
  }

  static void Print(const char* operation, const Sent& sent) {
    std::printf("%s: rows ahead %llu, announce %llu, decided %llu, joined %llu\n", operation,
                static_cast<unsigned long long>(sent.rows_ahead),
                static_cast<unsigned long long>(sent.announce),
                static_cast<unsigned long long>(sent.decided),
                static_cast<unsigned long long>(sent.joined));
  }

  RoutingSpec spec_;
  std::vector<int32_t> topk_[kRanks];
  std::vector<Memory> plan_memory_;
  std::vector<RoutingPlanView> plans_;
  LastSubject said_;
  LastSubject heard_;
};

TEST_F(WireBytesTest, ADispatchOfEightTokensLeavesRoomForItsPackets) {
  const Sent sent = SendTwoRanks(0, {Dispatch(2), Dispatch(3)});
  Print("dispatch", sent);
  EXPECT_LE(sent.from_other(), kMaxBytes);
  EXPECT_LE(sent.from_leader(), kMaxBytes);
}

TEST_F(WireBytesTest, ACombineOfEightTokensLeavesRoomForItsPackets) {
  const Sent sent = SendTwoRanks(1, {Combine(2), Combine(3)});
  Print("combine", sent);
  EXPECT_LE(sent.from_other(), kMaxBytes);
  EXPECT_LE(sent.from_leader(), kMaxBytes);
}

}  // namespace
}  // namespace epd
