// Goal: gather and reduce on the device gives the bits of the plain reference (sums in fp32, in k
// order, rounded once) for every type, row size, capacity, grid and order of threads.
#include <gtest/gtest.h>

#include "kernels/cuda/gather_reduce.h"
#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16};

struct Gather {
  Gather(const RoutingPlanView& view, const std::vector<GatherSource>& from,
         std::uint64_t row_bytes)
      : sources(from),
        out(view.num_tokens * row_bytes),
        weights(view.num_tokens * view.spec.top_k) {
    std::fill(weights.begin(), weights.end(), -1.0f);
    args.table = view.table;
    args.sources = sources.data();
    args.out = out.data();
    args.out_weights = weights.data();
    args.num_tokens = view.num_tokens;
    args.row_bytes = row_bytes;
    args.top_k = view.spec.top_k;
    args.num_ranks = view.spec.num_ranks;
  }
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  std::vector<GatherSource> sources;
  Region out;
  std::vector<float> weights;
  GatherReduceArgs args;
};

// Every rank's expert rows: C slots each, of which min(total_recv, C) are live.
struct ExpertRows {
  std::vector<reference::Bytes> rows;
  std::vector<std::vector<float>> weights;
};

ExpertRows RandomExpertRows(Random& random, int num_ranks, std::int64_t capacity,
                            std::uint64_t row_bytes, DataType type) {
  ExpertRows from;
  for (int r = 0; r < num_ranks; ++r) {
    from.rows.push_back(RandomRows(random, capacity * row_bytes, type));
    from.weights.push_back(RandomFloats(random, capacity));
  }
  return from;
}

std::vector<GatherSource> SourcesOf(const Plans& plans, const DeviceTensors& tensors) {
  std::vector<GatherSource> sources;
  for (std::size_t r = 0; r < tensors.rows.size(); ++r) {
    const auto capacity = static_cast<std::int64_t>(tensors.weights[r].size());
    sources.push_back({tensors.rows[r].data(), tensors.weights[r].data(),
                       LiveSlots(plans.TotalRecv(static_cast<int>(r)), capacity)});
  }
  return sources;
}

void ExpectLikeReference(const reference::Problem& problem, const Plans& plans, DataType type,
                         std::uint64_t row_bytes, std::int64_t capacity, Random& random) {
  const ExpertRows from = RandomExpertRows(random, problem.num_ranks, capacity, row_bytes, type);
  const DeviceTensors tensors(from.rows, from.weights);
  const std::vector<GatherSource> sources = SourcesOf(plans, tensors);
  for (int r = 0; r < problem.num_ranks; ++r) {
    const Device device = RandomDevice(random);
    Gather gather(plans.View(r), sources, row_bytes);
    ReportWord report = kNoReport;
    Execute(GatherReduceLaunches(gather.args, type, &report, device.shape), device);
    EXPECT_EQ(report, kNoReport);
    const reference::GatherResult want =
        reference::Gather(problem, r, from.rows, from.weights, row_bytes, type);
    EXPECT_EQ(gather.out.Copy(), want.rows) << "rank " << r << " C=" << capacity;
    EXPECT_EQ(gather.weights, want.weights) << "rank " << r;
  }
}

// All ranks' gathers in one launch.
TEST(GatherTest, RanksOfOneWorkerMatchTheReference) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    const DataType type = kTypes[seed % 3];
    const std::uint64_t row_bytes = Uniform(random, 1, 300) * DataTypeBytes(type);
    SCOPED_TRACE(Describe(problem, seed) + " row_bytes=" + std::to_string(row_bytes));
    const Plans plans(problem);
    const ExpertRows from = RandomExpertRows(random, problem.num_ranks, 40, row_bytes, type);
    const DeviceTensors tensors(from.rows, from.weights);
    const std::vector<GatherSource> sources = SourcesOf(plans, tensors);
    std::vector<ReportWord> reports(sources.size(), kNoReport);
    std::vector<std::unique_ptr<Gather>> gathers;
    std::vector<GatherReduceArgs> all;
    std::vector<CheckTable::Args> checks;
    for (std::size_t r = 0; r < sources.size(); ++r) {
      gathers.push_back(
          std::make_unique<Gather>(plans.View(static_cast<int>(r)), sources, row_bytes));
      all.push_back(gathers.back()->args);
      all.back().gate.report = &reports[r];
      checks.push_back({all.back().table, all.back().num_tokens * all.back().top_k,
                        problem.num_ranks, &reports[r], nullptr});
    }
    const Device device = RandomDevice(random);
    Execute(CheckTableLaunches(ForEach(checks), device.shape), device);
    Execute(GatherReduceLaunches(ForEach(all), type, device.shape), device);
    EXPECT_EQ(reports, std::vector<ReportWord>(sources.size(), kNoReport));
    for (std::size_t r = 0; r < sources.size(); ++r) {
      const reference::GatherResult want =
          reference::Gather(problem, static_cast<int>(r), from.rows, from.weights, row_bytes, type);
      ASSERT_EQ(gathers[r]->out.Copy(), want.rows) << "rank " << r;
      ASSERT_EQ(gathers[r]->weights, want.weights) << "rank " << r;
    }
  }
}

TEST(GatherTest, RandomExchangesMatchTheReference) {
  constexpr std::uint64_t kElements[] = {1, 3, 8, 16, 31, 64, 65, 130, 256, 300, 1028};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    const DataType type = kTypes[seed % 3];
    const std::uint64_t row_bytes =
        kElements[Uniform(random, 0, std::size(kElements) - 1)] * DataTypeBytes(type);
    SCOPED_TRACE(Describe(problem, seed) + " row_bytes=" + std::to_string(row_bytes));
    const Plans plans(problem);
    std::int64_t demand = 0;
    for (int r = 0; r < problem.num_ranks; ++r) {
      demand = std::max<std::int64_t>(demand, plans.TotalRecv(r));
    }
    for (const std::int64_t capacity : {std::int64_t{0}, demand / 2, demand}) {
      ExpectLikeReference(problem, plans, type, row_bytes, capacity, random);
    }
    if (HasFailure()) break;
  }
}

// Rows of several rounds of a warp, whole ones and parts.
TEST(GatherTest, TokensOfOneRouteMatchTheReference) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Random random(seed);
    reference::Problem problem;
    problem.num_ranks = 2;
    problem.num_experts = 3;
    problem.top_k = 1;
    problem.max_tokens = 64;
    problem.owner = {0, 1, 1};
    problem.topk.resize(2);
    for (std::vector<std::int64_t>& topk : problem.topk) {
      topk.resize(seed < 6 ? 64 : 3);
      for (std::int64_t& expert : topk) expert = Uniform(random, -1, 2);
    }
    const DataType type = kTypes[seed % 3];
    const std::uint64_t row_bytes = seed % 2 == 0 ? 8992 : 16400;
    SCOPED_TRACE(Describe(problem, seed) + " row_bytes=" + std::to_string(row_bytes));
    ExpectLikeReference(problem, Plans(problem), type, row_bytes, 128, random);
  }
}

// -0 and -0 is -0; a sum that began with +0 would lose the sign.
TEST(GatherTest, SumsBeginWithTheFirstRow) {
  reference::Problem problem;
  problem.top_k = 2;
  problem.max_tokens = 1;
  problem.owner = {0};
  problem.topk = {{0, 0}};
  const Plans plans(problem);
  for (const DataType type : kTypes) {
    reference::Bytes rows(2 * 48, 0);
    for (std::size_t i = 0; i < rows.size() / DataTypeBytes(type); ++i) {
      reference::SetElement(rows.data(), i, type, -0.0f);
    }
    const DeviceTensors tensors({rows}, {{0.0f, 0.0f}});
    Gather gather(plans.View(0), SourcesOf(plans, tensors), 48);
    const Device device;
    Execute(GatherReduceLaunches(gather.args, type, nullptr, device.shape), device);
    EXPECT_EQ(gather.out.Copy(), reference::Bytes(rows.begin(), rows.begin() + 48));
  }
}

// Of 300,000 rows of 7,168 bf16, 4.3 GB, which one rank gets where all ranks' tokens go to it. Offsets of 32 bits would wrap.
TEST(GatherTest, RowsFarIntoABufferAreFound) {
  constexpr std::uint64_t kRowBytes = 14336;
  constexpr std::int32_t kRows = 300'000;
  constexpr PlanRoute kTable[] = {{0, kRows - 1}, {0, 150'000}, {0, 0}};  // One token's.
  const VastRegion rows(kRows * kRowBytes);
  reference::Bytes want(kRowBytes);
  for (std::uint64_t i = 0; i < kRowBytes / 2; ++i) {
    float sum = 0;
    for (const PlanRoute& route : kTable) {
      const auto value = static_cast<float>((i + route.slot) % 50);
      reference::SetElement(rows.data() + route.slot * kRowBytes, i, DataType::kBfloat16, value);
      sum += value;
    }
    reference::SetElement(want.data(), i, DataType::kBfloat16, sum);
  }
  const GatherSource source = {rows.data(), nullptr, kRows};
  const Region out(kRowBytes);
  GatherReduceArgs args;
  args.table = kTable;
  args.sources = &source;
  args.out = out.data();
  args.num_tokens = 1;
  args.row_bytes = kRowBytes;
  args.top_k = 3;
  args.num_ranks = 1;
  Execute(GatherReduceLaunches(args, DataType::kBfloat16, nullptr, {}), {});
  EXPECT_EQ(out.Copy(), want);
}

TEST(GatherTest, ABadStatusOrABadTableLeavesZeros) {
  Random random(3);
  reference::Problem problem;
  problem.num_ranks = 2;
  problem.num_experts = 4;
  problem.top_k = 2;
  problem.max_tokens = 8;
  problem.owner = reference::ContiguousOwners(2, 4);
  problem.topk = {{0, 1, 2, 3, 0, -1}, {1, 0, 3, 3}};
  const Plans plans(problem);
  const ExpertRows from = RandomExpertRows(random, 2, 8, 32, DataType::kBfloat16);
  const DeviceTensors tensors(from.rows, from.weights);
  const Device device;
  const std::uint32_t status = 4;
  for (const bool bad_status : {true, false}) {
    Gather gather(plans.View(0), SourcesOf(plans, tensors), 32);
    std::vector<PlanRoute> table(plans.View(0).table, plans.View(0).table + 6);
    if (bad_status) {
      gather.args.gate.status = &status;
    } else {
      table[2].dst_rank = 2;
      gather.args.table = table.data();
    }
    ReportWord report = kNoReport;
    Execute(GatherReduceLaunches(gather.args, DataType::kBfloat16, &report, device.shape), device);
    EXPECT_EQ(ReadReport(report).index, bad_status ? -1 : 2);
    EXPECT_EQ(gather.out.Copy(), reference::Bytes(gather.out.size(), 0));
    EXPECT_EQ(gather.weights, std::vector<float>(6, 0.0f));
  }
}

}  // namespace
}  // namespace epd::cuda
