// Goal: whatever a peer writes into its stage, or a program into its plan, readers stay inside of what they were given
// and leave zeros, or what a sound plan gives.
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "daemon/worker/peer_streams/stage_image.h"
#include "kernels/gather_reduce_rows.h"
#include "kernels/plan_checksum.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"
#include "proto/epd/v1/region_layout.h"
#include "tests/fuzz/input.h"

namespace epd {
namespace {

constexpr int kRanks = 3;
constexpr int kExperts = 6;
constexpr int kTokens = 6;
constexpr int kTopK = 2;
constexpr uint64_t kRowBytes = 20;  // Of dispatch; combine sums rows of five floats.
constexpr int64_t kCapacity = kRanks * kTokens * kTopK + kExperts * 4;
constexpr PlanIds kIds = {1, 1, 9};

// Exactly `bytes`, aligned to 64, so that the address sanitizer sees the first byte beyond.
class Block {
 public:
  explicit Block(size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) std::abort();
    memory_.reset(static_cast<char*>(memory));
    std::memset(memory, 0, bytes);
  }
  char* data() const { return memory_.get(); }
  size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t bytes_;
};

void Patch(fuzz::Input& in, const Block& block, size_t first_bytes) {
  const size_t limit = std::min(block.size(), first_bytes);
  for (uint32_t patches = 1 + in.Below(6); patches > 0; --patches) {
    const size_t at = in.Take<uint16_t>() % (limit - sizeof(uint32_t) + 1);
    const uint32_t value = in.Below(2) == 0 ? in.Take<uint8_t>() : in.Take<uint32_t>();
    std::memcpy(block.data() + at, &value, in.Below(2) == 0 ? 1 : sizeof value);
  }
}

// All ranks' plans and stages.
struct Exchange3 {
  Exchange3() {
    spec.num_ranks = kRanks;
    spec.num_experts = kExperts;
    spec.top_k = kTopK;
    spec.alignment = 4;
    spec.max_tokens = kTokens;
    std::mt19937 random(3);
    for (auto& of_rank : topk) {
      for (int32_t& index : of_rank) index = static_cast<int32_t>(random() % (kExperts + 1)) - 1;
    }
    std::vector<int32_t> counts(kRanks * kExperts);
    for (int r = 0; r < kRanks; ++r) {
      EPD_FUZZ_CHECK(CountRoutes(spec, Topk(r), &counts[r * kExperts]).ok());
    }
    for (int r = 0; r < kRanks; ++r) {
      plans.emplace_back(RoutingPlanBytes(spec));
      int32_t zones[kExperts];
      int32_t total = 0;
      EPD_FUZZ_CHECK(BuildRoutingPlan({.spec = spec,
                                       .rank = r,
                                       .ids = kIds,
                                       .topk = Topk(r),
                                       .counts = counts.data(),
                                       .plan = plans[r].data(),
                                       .plan_bytes = plans[r].size(),
                                       .token_counts = zones,
                                       .total_recv = &total})
                         .ok());
      EPD_FUZZ_CHECK(View(r, &views[r]).ok());
      StageRank(r);
    }
  }

  TopkIndices Topk(int rank) const { return {topk[rank], IndexType::kInt32, kTokens}; }
  KernelError View(int rank, RoutingPlanView* view) const {
    return ViewRoutingPlan({plans[rank].data(), plans[rank].size(), spec, rank, kIds}, view);
  }

  void StageRank(int r) {
    const std::vector<char> rows(kCapacity * kRowBytes, static_cast<char>(r + 1));
    scatters.emplace_back(ScatterStageBytes({kTokens, views[r].num_routes, kRanks, kRowBytes}));
    EPD_FUZZ_CHECK(StageScatter({&views[r], rows.data(), nullptr, kTokens, kRowBytes,
                                 scatters[r].data(), scatters[r].size()})
                       .ok());
    const uint64_t gather_bytes = shm::RoundUpToRegionAlignment(
        GatherStageBytes({TotalRecv(spec, views[r].counts, r), kRowBytes, false}));
    // In turns as clients bring them now and as older ones do.
    std::vector<int32_t> counts;
    for (int source = 0; source < kRanks; ++source) {
      for (int e = 0; e < kExperts; ++e) {
        if (r % 2 == 0 || ExpertOwner(spec, e) == r)
          counts.push_back(RowsOf(spec, views[r].counts, source, e));
      }
    }
    gathers.emplace_back(gather_bytes + shm::CountsBytes(kRanks, counts.size() / kRanks));
    EPD_FUZZ_CHECK(StageGather({&views[r], rows.data(), nullptr, kCapacity, kRowBytes,
                                gathers[r].data(), gather_bytes})
                       .ok());
    std::memcpy(gathers[r].data() + gather_bytes, counts.data(), counts.size() * 4);
  }

  RoutingSpec spec;
  int32_t topk[kRanks][kTokens * kTopK];
  std::vector<Block> plans;
  RoutingPlanView views[kRanks];
  std::vector<Block> scatters;
  std::vector<Block> gathers;
};

void CheckZeros(const Block& block) {
  for (size_t i = 0; i < block.size(); ++i) EPD_FUZZ_CHECK(block.data()[i] == 0);
}

void PullAll(const Exchange3& all, const RoutingPlanView& view) {
  std::vector<StageRef> refs;
  for (const Block& stage : all.scatters) refs.push_back({stage.data(), stage.size()});
  const Block rows(kCapacity * kRowBytes);
  PullScatterArgs scatter;
  scatter.plan = &view;
  scatter.sources = refs.data();
  scatter.row_bytes = kRowBytes;
  scatter.capacity = kCapacity;
  scatter.recv_rows = rows.data();
  if (!PullScatter(scatter).ok()) CheckZeros(rows);

  refs.clear();
  for (const Block& stage : all.gathers) refs.push_back({stage.data(), stage.size()});
  const Block sums(kTokens * kRowBytes);
  PullGatherArgs gather;
  gather.plan = &view;
  gather.sources = refs.data();
  gather.row_bytes = kRowBytes;
  gather.num_tokens = kTokens;
  gather.out = sums.data();
  if (!PullGather(gather).ok()) CheckZeros(sums);
}

void MakeImages(const Exchange3& all) {
  for (const bool is_scatter : {true, false}) {
    const Block& stage = is_scatter ? all.scatters[1] : all.gathers[1];
    PublishedStage published{.base = stage.data(), .said = {}, .rank = Rank(1), .spec = all.spec};
    published.said.kind = is_scatter ? shm::Kind::kCombineBackward : shm::Kind::kCombine;
    published.said.row_bytes = kRowBytes;
    published.said.stage_bytes = stage.size();
    const auto image = MakeImage(published, {Rank(0), Rank(2)});
    if (!image.ok()) continue;
    uint64_t made = 0;
    uint64_t end = 0;
    for (const ImagePiece& piece : image->pieces) {
      EPD_FUZZ_CHECK(piece.offset >= end);
      end = piece.offset + piece.bytes;
      EPD_FUZZ_CHECK(piece.bytes <= stage.size() && end <= stage.size());
      if (piece.from == nullptr) {
        made += piece.bytes;
      } else {
        EPD_FUZZ_CHECK(piece.from >= stage.data() &&
                       piece.from + piece.bytes <= stage.data() + stage.size());
      }
    }
    EPD_FUZZ_CHECK(made <= image->made.size());
  }
}

void DamagePlan(fuzz::Input& in, Exchange3& all) {
  const RoutingPlanView sound = all.views[0];
  Block& plan = all.plans[0];
  Patch(in, plan, sound.used_bytes);
  RoutingPlanView view;
  if (in.Below(4) == 0) {
    if (all.View(0, &view).ok()) PullAll(all, view);
    return;
  }
  // Somebody who makes a plan up knows how to seal it.
  const uint64_t sum =
      SealPlanSum(SumPlanWords(plan.data(), sound.used_bytes, 0, 1), sound.used_bytes);
  std::memcpy(plan.data() + offsetof(PlanHeader, checksum), &sum, sizeof sum);
  if (!all.View(0, &view).ok()) return;
  all.views[0] = view;
  const std::vector<char> rows(kCapacity * kRowBytes, 1);
  const Block stage(ScatterStageBytes({kTokens, view.num_routes, kRanks, kRowBytes}));
  (void)StageScatter(
      {&view, rows.data(), nullptr, view.num_tokens, kRowBytes, stage.data(), stage.size()});
  PullAll(all, view);
}

}  // namespace
}  // namespace epd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  epd::fuzz::Input in(data, size);
  epd::Exchange3 all;
  switch (in.Below(3)) {
    case 0: {
      // The head and the routes; rows are only bytes.
      epd::Patch(in, all.scatters[1], 400);
      epd::Patch(in, all.gathers[1], 64);
      epd::PullAll(all, all.views[0]);
      break;
    }
    case 1: {
      epd::Patch(in, all.scatters[1], 400);
      const epd::Block& gather = all.gathers[1];
      epd::Patch(in, gather, gather.size());
      epd::MakeImages(all);
      break;
    }
    case 2:
      epd::DamagePlan(in, all);
      break;
  }
  return 0;
}
