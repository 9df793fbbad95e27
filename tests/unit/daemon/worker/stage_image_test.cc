// Goal: of a stage another node gets each row once that its ranks need, at places where the pulling
// kernels find it, and nothing else; a damaged stage is refused by name and never read beyond its
// end.
#include "daemon/worker/peer_streams/stage_image.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>

#include "kernels/gather_reduce_rows.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"
#include "kernels/slice_stage.h"
#include "proto/epd/v1/region_layout.h"

namespace epd {
namespace {

constexpr int kRanks = 4;  // Two on each of two nodes.
constexpr int kExperts = 8;
constexpr int kTokens = 20;
constexpr int kTopK = 3;
constexpr uint64_t kRowBytes = 64;
constexpr int64_t kCapacity = 400;

struct Aligned {
  explicit Aligned(size_t bytes) : words(bytes / 64 + 2) {
    const auto address = reinterpret_cast<uintptr_t>(words.data());
    data = reinterpret_cast<char*>((address + 63) / 64 * 64);
  }
  struct Line {
    char bytes[64];
  };
  std::vector<Line> words;
  char* data;
};

class StageImageTest : public testing::Test {
 protected:
  StageImageTest() {
    spec_.num_ranks = kRanks;
    spec_.num_experts = kExperts;
    spec_.top_k = kTopK;
    spec_.alignment = 4;
    spec_.max_tokens = kTokens;
    std::mt19937 random(3);
    for (auto& indices : topk_) {
      for (int i = 0; i < kTokens * kTopK; ++i) {
        indices.push_back(static_cast<int32_t>(random() % (kExperts + 1)) - 1);
      }
    }
    std::vector<int32_t> counts(kRanks * kExperts);
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(CountRoutes(spec_, Topk(r), &counts[r * kExperts]).ok());
    }
    for (int r = 0; r < kRanks; ++r) {
      plan_memory_.emplace_back(RoutingPlanBytes(spec_));
      std::vector<int32_t> zones(kExperts);
      int32_t total = 0;
      const BuildPlanArgs args{.spec = spec_,
                               .rank = r,
                               .ids = {1, 1, 9},
                               .topk = Topk(r),
                               .counts = counts.data(),
                               .plan = plan_memory_[r].data,
                               .plan_bytes = RoutingPlanBytes(spec_),
                               .token_counts = zones.data(),
                               .total_recv = &total};
      EXPECT_TRUE(BuildRoutingPlan(args).ok());
      const ViewPlanArgs view{.plan = plan_memory_[r].data,
                              .bytes = RoutingPlanBytes(spec_),
                              .spec = spec_,
                              .rank = r,
                              .ids = {1, 1, 9}};
      plans_.emplace_back();
      EXPECT_TRUE(ViewRoutingPlan(view, &plans_[r]).ok());
    }
  }

  TopkIndices Topk(int rank) const {
    return {.data = topk_[rank].data(), .type = IndexType::kInt32, .num_tokens = kTokens};
  }
  // What the image leaves in a region full of 0xee.
  static void Land(const StageImage& image, char* region) {
    size_t made = 0;
    for (const ImagePiece& piece : image.pieces) {
      const char* from = piece.from != nullptr ? piece.from : image.made.data() + made;
      if (piece.from == nullptr) made += piece.bytes;
      std::memcpy(region + piece.offset, from, piece.bytes);
    }
  }
  PublishedStage Published(const char* base, shm::Kind kind, int rank, uint64_t bytes) const {
    PublishedStage stage{.base = base, .said = {}, .rank = Rank(rank), .spec = spec_};
    stage.said.kind = kind;
    stage.said.row_bytes = kRowBytes;
    stage.said.stage_bytes = bytes;
    return stage;
  }

  // As they stand behind a gather's stage.
  std::vector<int32_t> CountsOf(int rank, bool of_all) const {
    std::vector<int32_t> counts;
    for (int source = 0; source < kRanks; ++source) {
      for (int e = 0; e < kExperts; ++e) {
        if (of_all || ExpertOwner(spec_, e) == rank)
          counts.push_back(RowsOf(spec_, plans_[rank].counts, source, e));
      }
    }
    return counts;
  }
  void ExpectSameSums(bool of_all);

  RoutingSpec spec_;
  std::vector<int32_t> topk_[kRanks];
  std::vector<Aligned> plan_memory_;
  std::vector<RoutingPlanView> plans_;
};

std::vector<float> Rows(int64_t rows, int seed) {
  std::vector<float> values(static_cast<size_t>(rows) * kRowBytes / 4);
  std::mt19937 random(static_cast<unsigned>(seed));
  for (float& value : values) value = static_cast<float>(random() % 1000);
  return values;
}

TEST_F(StageImageTest, ScattersPullTheSameRowsFromTheImageAndEachCrossesOnce) {
  std::vector<Aligned> stages;
  std::vector<Aligned> images;
  std::vector<StageRef> whole(kRanks);
  std::vector<StageRef> cut(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    const ScatterStageShape shape{kTokens, plans_[r].num_routes, kRanks, kRowBytes};
    const size_t bytes = ScatterStageBytes(shape);
    const std::vector<float> rows = Rows(kTokens, r);
    stages.emplace_back(bytes);
    StageScatterArgs args;
    args.plan = &plans_[r];
    args.rows = rows.data();
    args.num_tokens = kTokens;
    args.row_bytes = kRowBytes;
    args.stage = stages[r].data;
    args.stage_bytes = bytes;
    ASSERT_TRUE(StageScatter(args).ok());
    whole[r] = cut[r] = {stages[r].data, bytes};
    images.emplace_back(bytes);
    std::memset(images[r].data, 0xee, bytes);
    if (r < 2) continue;
    const auto image = MakeImage(Published(stages[r].data, shm::Kind::kCombineBackward, r, bytes),
                                 {Rank(0), Rank(1)});
    ASSERT_TRUE(image.ok()) << image.status();
    Land(*image, images[r].data);
    cut[r] = {images[r].data, bytes};
    uint64_t pairs = 0;
    for (int t = 0; t < kTokens; ++t) {
      bool goes = false;
      for (int k = 0; k < kTopK; ++k) {
        const int32_t expert = topk_[r][static_cast<size_t>(t * kTopK + k)];
        goes = goes || (expert >= 0 && ExpertOwner(spec_, expert) < 2);
      }
      pairs += goes ? 1 : 0;
    }
    EXPECT_EQ(image->bytes - image->made.size(), pairs * kRowBytes);
  }
  for (int r = 0; r < 2; ++r) {
    std::vector<char> from_whole(kCapacity * kRowBytes);
    std::vector<char> from_cut(kCapacity * kRowBytes);
    PullScatterArgs args;
    args.plan = &plans_[r];
    args.row_bytes = kRowBytes;
    args.capacity = kCapacity;
    args.sources = whole.data();
    args.recv_rows = from_whole.data();
    ASSERT_TRUE(PullScatter(args).ok());
    args.sources = cut.data();
    args.recv_rows = from_cut.data();
    ASSERT_TRUE(PullScatter(args).ok());
    EXPECT_EQ(from_whole, from_cut);
  }
}

// Counts of its own experts are what a rank brings; of all of them, what older clients do.
TEST_F(StageImageTest, GathersPullTheSameSumsFromTheImage) {
  for (const bool of_all : {false, true}) ExpectSameSums(of_all);
}

void StageImageTest::ExpectSameSums(bool of_all) {
  SCOPED_TRACE(of_all);
  std::vector<Aligned> stages;
  std::vector<Aligned> images;
  std::vector<StageRef> whole(kRanks);
  std::vector<StageRef> cut(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    const int64_t live = TotalRecv(spec_, plans_[r].counts, r);
    const uint64_t stage_bytes =
        shm::RoundUpToRegionAlignment(GatherStageBytes({live, kRowBytes, false}));
    const std::vector<int32_t> counts = CountsOf(r, of_all);
    const uint64_t bytes = stage_bytes + shm::CountsBytes(kRanks, counts.size() / kRanks);
    const std::vector<float> rows = Rows(kCapacity, 10 + r);
    stages.emplace_back(bytes);
    StageGatherArgs args;
    args.plan = &plans_[r];
    args.rows = rows.data();
    args.capacity = kCapacity;
    args.row_bytes = kRowBytes;
    args.stage = stages[r].data;
    args.stage_bytes = stage_bytes;
    ASSERT_TRUE(StageGather(args).ok());
    std::memcpy(stages[r].data + stage_bytes, counts.data(), counts.size() * sizeof(int32_t));
    whole[r] = cut[r] = {stages[r].data, bytes};
    images.emplace_back(bytes);
    std::memset(images[r].data, 0xee, bytes);
    if (r < 2) continue;
    const auto image =
        MakeImage(Published(stages[r].data, shm::Kind::kCombine, r, bytes), {Rank(0), Rank(1)});
    ASSERT_TRUE(image.ok()) << image.status();
    Land(*image, images[r].data);
    cut[r] = {images[r].data, bytes};
    const int64_t routes =
        RowsBetween(spec_, plans_[r].counts, 0, r) + RowsBetween(spec_, plans_[r].counts, 1, r);
    EXPECT_EQ(image->bytes, sizeof(GatherStageHeader) + static_cast<uint64_t>(routes) * kRowBytes);
  }
  for (int r = 0; r < 2; ++r) {
    std::vector<char> from_whole(kTokens * kRowBytes);
    std::vector<char> from_cut(kTokens * kRowBytes);
    PullGatherArgs args;
    args.plan = &plans_[r];
    args.dtype = DataType::kFloat32;
    args.row_bytes = kRowBytes;
    args.num_tokens = kTokens;
    args.sources = whole.data();
    args.out = from_whole.data();
    ASSERT_TRUE(PullGather(args).ok());
    args.sources = cut.data();
    args.out = from_cut.data();
    ASSERT_TRUE(PullGather(args).ok());
    EXPECT_EQ(from_whole, from_cut);
  }
}

TEST_F(StageImageTest, AGatherWhoseCountsFitNoSetOfExpertsIsRefused) {
  const uint64_t stage_bytes = shm::RoundUpToRegionAlignment(
      GatherStageBytes({TotalRecv(spec_, plans_[2].counts, 2), kRowBytes, false}));
  const uint64_t of_own = shm::CountsBytes(kRanks, kExperts / kRanks);
  const uint64_t of_all = shm::CountsBytes(kRanks, kExperts);
  const std::vector<float> rows = Rows(kCapacity, 12);
  Aligned stage(stage_bytes + of_all + 64);
  StageGatherArgs args;
  args.plan = &plans_[2];
  args.rows = rows.data();
  args.capacity = kCapacity;
  args.row_bytes = kRowBytes;
  args.stage = stage.data;
  args.stage_bytes = stage_bytes;
  ASSERT_TRUE(StageGather(args).ok());
  for (const uint64_t counts : {uint64_t{0}, of_own + 64, of_all - 64, of_all + 64}) {
    if (counts == of_own || counts == of_all) continue;
    const auto image = MakeImage(
        Published(stage.data, shm::Kind::kCombine, 2, stage_bytes + counts), {Rank(0), Rank(1)});
    EXPECT_EQ(image.status().code(), absl::StatusCode::kDataLoss) << counts;
  }
}

// Every word of a stage's head, set to values that lie beyond everything.
TEST_F(StageImageTest, DamageNeverReadsBeyondTheStage) {
  const ScatterStageShape shape{kTokens, plans_[2].num_routes, kRanks, kRowBytes};
  const size_t bytes = ScatterStageBytes(shape);
  const std::vector<float> rows = Rows(kTokens, 2);
  Aligned stage(bytes);
  StageScatterArgs args;
  args.plan = &plans_[2];
  args.rows = rows.data();
  args.num_tokens = kTokens;
  args.row_bytes = kRowBytes;
  args.stage = stage.data;
  args.stage_bytes = bytes;
  ASSERT_TRUE(StageScatter(args).ok());
  const std::vector<char> good(stage.data, stage.data + bytes);
  int refused = 0;
  for (size_t at = 0; at < ScatterRowsOffset(shape); at += 4) {
    for (const uint32_t value : {0u, 21u, 0x7fffffffu, 0xffffffffu}) {
      std::memcpy(stage.data, good.data(), bytes);
      std::memcpy(stage.data + at, &value, 4);
      const auto image = MakeImage(Published(stage.data, shm::Kind::kCombineBackward, 2, bytes),
                                   {Rank(0), Rank(1)});
      if (!image.ok()) {
        EXPECT_EQ(image.status().code(), absl::StatusCode::kDataLoss);
        ++refused;
        continue;
      }
      for (const ImagePiece& piece : image->pieces) {
        if (piece.from == nullptr) continue;
        EXPECT_GE(piece.from, stage.data);
        EXPECT_LE(piece.from + piece.bytes, stage.data + bytes);
        EXPECT_LE(piece.offset + piece.bytes, bytes);
      }
    }
  }
  EXPECT_GT(refused, 20);
}

// Otherwise the other node would find rows outside of the region and end the stream of all groups.
TEST_F(StageImageTest, RoutesThatTwoRanksShareAreRefused) {
  const ScatterStageShape shape{kTokens, plans_[2].num_routes, kRanks, kRowBytes};
  const size_t bytes = ScatterStageBytes(shape);
  const std::vector<float> rows = Rows(kTokens, 2);
  Aligned stage(bytes);
  StageScatterArgs args;
  args.plan = &plans_[2];
  args.rows = rows.data();
  args.num_tokens = kTokens;
  args.row_bytes = kRowBytes;
  args.stage = stage.data;
  args.stage_bytes = bytes;
  ASSERT_TRUE(StageScatter(args).ok());
  const auto all = static_cast<uint32_t>(plans_[2].num_routes);
  // Of ranks 0 and 3, and the end behind it.
  for (const auto& [rank, begin] : {std::pair{1, all}, std::pair{3, 0u}, std::pair{4, all}}) {
    std::memcpy(stage.data + sizeof(ScatterStageHeader) + 4 * rank, &begin, 4);
  }
  const auto image =
      MakeImage(Published(stage.data, shm::Kind::kCombineBackward, 2, bytes), {Rank(0), Rank(3)});
  EXPECT_EQ(image.status().code(), absl::StatusCode::kDataLoss) << image.status();
}

TEST_F(StageImageTest, OfSlicesTheWholeTableCrossesAndTheRowsThatAreWantedOnce) {
  SliceStageHeader header = {.magic = kSliceStageMagic,
                             .num_ranks = kRanks,
                             .slices_per_rank = 1,
                             .row_bytes = kRowBytes,
                             .operand_rows = 8,
                             .output_rows = 8,
                             .staged_rows = 6};
  // Rows 0 and 1 go to rank 1, 1 to 3 to rank 2, 2 and 3 to rank 3: those of two nodes.
  StageSlice slices[kRanks] = {{}, {0, 2, 0, 0, 0}, {1, 3, 0, 0, 1}, {2, 2, 0, 0, 2}};
  const uint64_t rows_at = SliceRowsOffset(kRanks);
  const uint64_t bytes = rows_at + header.staged_rows * kRowBytes;
  Aligned stage(bytes);
  const auto image = [&] {
    std::memcpy(stage.data, &header, sizeof header);
    std::memcpy(stage.data + sizeof header, slices, sizeof slices);
    return MakeImage(Published(stage.data, shm::Kind::kDispatch, 0, bytes), {Rank(2), Rank(3)});
  };
  const auto made = image();
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->pieces.size(), 2u);
  EXPECT_EQ(made->pieces[0].bytes, sizeof header + sizeof slices);
  EXPECT_EQ(std::memcmp(made->made.data() + sizeof header, slices, sizeof slices), 0);
  EXPECT_EQ(made->pieces[1].offset, rows_at + kRowBytes);
  EXPECT_EQ(made->pieces[1].bytes, 3 * kRowBytes);
  slices[3].staged_row = 5;
  EXPECT_EQ(image().status().code(), absl::StatusCode::kDataLoss);
  slices[3].staged_row = -1;
  EXPECT_EQ(image().status().code(), absl::StatusCode::kDataLoss);
  slices[3].staged_row = 2;
  header.staged_rows = UINT64_MAX;
  EXPECT_EQ(image().status().code(), absl::StatusCode::kDataLoss);
  header.staged_rows = 6;
  header.slices_per_rank = UINT32_MAX;
  EXPECT_EQ(image().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace epd
