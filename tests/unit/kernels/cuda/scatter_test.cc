// Goal: all forms of scatter leave, byte for byte, what the plain reference says, in every slot of
// every rank, for every row size, capacity, kernel variant, grid and order of threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/copy_rows.h"
#include "kernels/cuda/land_rows.h"
#include "kernels/cuda/push_direct.h"
#include "kernels/cuda/push_landing.h"
#include "kernels/cuda/read_rows.h"
#include "tests/unit/kernels/cuda/device_exchange.h"

namespace epd::cuda {
namespace {

// Row sizes of every width, with and without whole warps, and rows of several bulk chunks.
std::uint64_t RandomRowBytes(Random& random) {
  constexpr std::uint64_t kSizes[] = {16,   32, 512, 2048, 2064, 4,  20,   516,   2,    14,
                                      1030, 1,  7,   33,   1025, 96, 6144, 14336, 8208, 16400};
  if (Uniform(random, 0, 1) == 0) return static_cast<std::uint64_t>(Uniform(random, 1, 300));
  return kSizes[Uniform(random, 0, std::size(kSizes) - 1)];
}

struct Inputs {
  std::vector<reference::Bytes> rows;
  std::vector<std::vector<float>> weights;
};

Inputs RandomInputs(Random& random, const reference::Problem& problem, std::uint64_t row_bytes) {
  Inputs inputs;
  for (int r = 0; r < problem.num_ranks; ++r) {
    inputs.rows.push_back(RandomBytes(random, problem.NumTokens(r) * row_bytes));
    inputs.weights.push_back(RandomFloats(random, problem.topk[r].size()));
  }
  return inputs;
}

// How rows go: by landings, straight by one launch for all ranks, or staged by each rank and read by each.
enum class Form { kLanding, kDirect, kRead };

class ScatterTest : public testing::TestWithParam<Form> {
 protected:
  // Fills every rank's receive buffer and compares it.
  static void Exchange(const reference::Problem& problem, const Plans& plans, const Inputs& inputs,
                       std::uint64_t row_bytes, std::int64_t capacity, const Device& device) {
    std::vector<std::unique_ptr<DeviceRecv>> recvs;
    for (int r = 0; r < problem.num_ranks; ++r) {
      recvs.push_back(std::make_unique<DeviceRecv>(plans.View(r), capacity, row_bytes));
    }
    const DeviceTensors tensors(inputs.rows, inputs.weights);
    if (GetParam() == Form::kRead) {
      ReadAll(plans, tensors, row_bytes, recvs, device);
    } else if (GetParam() == Form::kDirect) {
      PushDirectly(plans, tensors, row_bytes, recvs, device);
      LandAll(nullptr, recvs, device);
    } else {
      // Also where they are longer than they must be, as where nobody has told the receivers.
      Landings landings(plans, problem.num_ranks, row_bytes, capacity % 2 == 0 ? 0 : INT32_MAX);
      PushAll(plans, tensors, row_bytes, device, landings);
      LandAll(&landings, recvs, device);
    }
    for (int r = 0; r < problem.num_ranks; ++r) {
      EXPECT_EQ(recvs[r]->report, kNoReport);
      const reference::ScatterResult want =
          reference::Scatter(problem, r, inputs.rows, inputs.weights, row_bytes, capacity);
      EXPECT_EQ(recvs[r]->rows.Copy(), want.rows) << "rank " << r << " C=" << capacity;
      EXPECT_EQ(recvs[r]->weights, want.weights) << "rank " << r;
    }
  }

 private:
  static void LandAll(Landings* landings, const std::vector<std::unique_ptr<DeviceRecv>>& recvs,
                      const Device& device) {
    std::vector<std::vector<LandingSource>> sources(recvs.size());
    std::vector<LandRowsArgs> all;
    for (std::size_t r = 0; r < recvs.size(); ++r) {
      if (landings != nullptr) sources[r] = landings->SourcesOf(static_cast<int>(r));
      all.push_back(recvs[r]->args);
      all.back().sources = landings == nullptr ? nullptr : sources[r].data();
    }
    Execute(LandRowsLaunches(ForEach(all), device.shape), device);
  }

  static void ReadAll(const Plans& plans, const DeviceTensors& tensors, std::uint64_t row_bytes,
                      const std::vector<std::unique_ptr<DeviceRecv>>& recvs, const Device& device) {
    std::vector<std::unique_ptr<DeviceStage>> memory;
    std::vector<ScatterStage> stages;
    for (std::size_t s = 0; s < recvs.size(); ++s) {
      const RoutingPlanView& view = plans.View(static_cast<int>(s));
      memory.push_back(std::make_unique<DeviceStage>(view, row_bytes));
      stages.push_back(memory.back()->stage);
      Execute(StageRowsLaunches(StagingArgs(view, tensors.rows[s], tensors.weights[s].data(),
                                            row_bytes, stages.back()),
                                device.shape),
              device);
    }
    for (std::size_t r = 0; r < recvs.size(); ++r) {
      Execute(ReadRowsLaunches(ReadingArgs(plans.View(static_cast<int>(r)), *recvs[r], stages),
                               device.shape),
              device);
    }
  }

  static void PushDirectly(const Plans& plans, const DeviceTensors& tensors,
                           std::uint64_t row_bytes,
                           const std::vector<std::unique_ptr<DeviceRecv>>& recvs,
                           const Device& device) {
    std::vector<RecvTarget> targets;
    for (const auto& recv : recvs) targets.push_back(recv->Target());
    std::vector<ReportWord> reports(recvs.size(), kNoReport);
    std::vector<PushDirectArgs> all;
    for (std::size_t s = 0; s < recvs.size(); ++s) {
      all.push_back(DirectArgs(plans.View(static_cast<int>(s)), tensors.rows[s],
                               tensors.weights[s].data(), row_bytes, targets, &reports[s]));
    }
    Execute(PushDirectLaunches(ForEach(all), device.shape), device);
    EXPECT_EQ(reports, std::vector<ReportWord>(recvs.size(), kNoReport));
  }
};

TEST_P(ScatterTest, RandomExchangesMatchTheReference) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    const std::uint64_t row_bytes = RandomRowBytes(random);
    SCOPED_TRACE(Describe(problem, seed) + " row_bytes=" + std::to_string(row_bytes));
    const Plans plans(problem);
    const Inputs inputs = RandomInputs(random, problem, row_bytes);
    std::int64_t demand = 0;
    for (int r = 0; r < problem.num_ranks; ++r) {
      demand = std::max<std::int64_t>(demand, plans.TotalRecv(r));
    }
    for (const std::int64_t capacity : {std::int64_t{0}, demand / 2, demand, demand + 5}) {
      Exchange(problem, plans, inputs, row_bytes, capacity, RandomDevice(random));
    }
    if (HasFailure()) break;
  }
}

// More tokens than a tile holds, so that landings are numbered across tiles.
TEST_P(ScatterTest, SeveralTilesMatchTheReference) {
  Random random(77);
  reference::Problem problem;
  problem.num_ranks = 4;
  problem.num_experts = 8;
  problem.top_k = 12;
  problem.alignment = 8;
  problem.max_tokens = 300;
  problem.owner = reference::ContiguousOwners(4, 8);
  problem.topk.resize(4);
  for (int r = 0; r < 4; ++r) {
    problem.topk[r].resize((100 * r) * 12);
    for (std::int64_t& expert : problem.topk[r]) expert = Uniform(random, -2, 7);
  }
  const Plans plans(problem);
  const Inputs inputs = RandomInputs(random, problem, 48);
  Exchange(problem, plans, inputs, 48, plans.TotalRecv(1), RandomDevice(random));
}

std::string NameOf(const testing::TestParamInfo<Form>& info) {
  const char* const names[] = {"Landing", "Direct", "Read"};
  return names[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Forms, ScatterTest,
                         testing::Values(Form::kLanding, Form::kDirect, Form::kRead), NameOf);

TEST(DestinationCountsTest, EachTokenCountsOnceForEachRankThatItGoesTo) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
    const Plans plans(problem);
    const auto top_k = static_cast<std::size_t>(problem.top_k);
    for (int s = 0; s < problem.num_ranks; ++s) {
      std::vector<std::int32_t> want(static_cast<std::size_t>(problem.num_ranks));
      for (std::size_t first = 0; first < problem.topk[s].size(); first += top_k) {
        std::set<std::int32_t> ranks;
        for (std::size_t k = 0; k < top_k; ++k) {
          const std::int64_t expert = problem.topk[s][first + k];
          if (expert >= 0) ranks.insert(problem.owner[static_cast<std::size_t>(expert)]);
        }
        for (const std::int32_t rank : ranks) ++want[static_cast<std::size_t>(rank)];
      }
      EXPECT_EQ(DestinationCounts(plans.View(s), RandomDevice(random)), want)
          << Describe(problem, seed);
    }
  }
}

// The counts are taken of bytes that nobody has checked.
TEST(DestinationCountsTest, AreNumbersOfTokensWhateverTheTableIs) {
  constexpr std::int32_t kTokens = 40;
  constexpr std::int32_t kRanks = 3;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    std::vector<PlanRoute> table(kTokens * 4);
    for (PlanRoute& route : table) {
      route.dst_rank = static_cast<std::int32_t>(Uniform(random, -3, kRanks + 2));
      if (Uniform(random, 0, 9) == 0) route.dst_rank = INT32_MIN;
      if (Uniform(random, 0, 9) == 0) route.dst_rank = INT32_MAX;
      route.slot = static_cast<std::int32_t>(Uniform(random, INT32_MIN, INT32_MAX));
    }
    std::vector<std::int32_t> tiles(kRanks);
    std::vector<std::int32_t> totals(kRanks, -7);
    ReportWord report = kNoReport;
    const Device device = RandomDevice(random);
    Execute(CountDestinationsLaunches({.routes = {table.data(), 4, kRanks, &report},
                                       .tiling = {kTokens, 4, kRanks},
                                       .tiles = tiles.data(),
                                       .totals = totals.data()},
                                      device.shape),
            device);
    EXPECT_THAT(totals, testing::Each(testing::AllOf(testing::Ge(0), testing::Le(kTokens))));
  }
}

class TwoRanksTest : public testing::Test {
 protected:
  TwoRanksTest() {
    problem_.num_ranks = 2;
    problem_.num_experts = 4;
    problem_.top_k = 2;
    problem_.alignment = 4;
    problem_.max_tokens = 8;
    problem_.owner = reference::ContiguousOwners(2, 4);
    problem_.topk = {{0, 1, 2, 3, 0, -1}, {1, 0, 3, 3}};
    plans_ = std::make_unique<Plans>(problem_);
    Random random(5);
    inputs_ = RandomInputs(random, problem_, kRowBytes);
  }

  // Rows of rank 0 with their weights, behind `status`.
  void Push(const DeviceTensors& tensors, const std::vector<LandingTarget>& targets,
            ReportWord* report, const std::uint32_t* status = nullptr) {
    const RoutingPlanView& view = plans_->View(0);
    PushLandingArgs push =
        LandingArgs(view, tensors.rows[0], tensors.weights[0].data(), kRowBytes, targets, report);
    if (status != nullptr) push.gate.status = status;
    const Region scratch = MakeScratch(
        [&view, &push](ScratchCursor& cursor) { TakePushScratch(view.spec, cursor, &push); });
    Execute(PushLandingLaunches(ForOne(push), device_.shape), device_);
  }

  static constexpr std::uint64_t kRowBytes = 48;
  reference::Problem problem_;
  std::unique_ptr<Plans> plans_;
  Inputs inputs_;
  Device device_;
};

// The backward of combine: rows without weights.
TEST_F(TwoRanksTest, WorksWithoutWeights) {
  const DeviceTensors tensors(inputs_.rows, {});
  Landings landings(*plans_, 2, kRowBytes);
  PushAll(*plans_, tensors, kRowBytes, device_, landings);
  DeviceRecv recv(plans_->View(0), 8, kRowBytes);
  const std::vector<LandingSource> sources = landings.SourcesOf(0);
  recv.args.sources = sources.data();
  recv.args.recv_weights = nullptr;
  Execute(LandRowsLaunches(ForOne(recv.args), device_.shape), device_);
  EXPECT_EQ(recv.rows.Copy(),
            reference::Scatter(problem_, 0, inputs_.rows, inputs_.weights, kRowBytes, 8).rows);
  EXPECT_EQ(recv.weights, std::vector<float>(8, -1.0f));
}

TEST_F(TwoRanksTest, ABadStatusPushesNothingAndLeavesZeros) {
  const DeviceTensors tensors(inputs_.rows, inputs_.weights);
  Landings landings(*plans_, 2, kRowBytes);
  const std::uint32_t status = 14;
  ReportWord report = kNoReport;
  const std::vector<LandingTarget> targets = landings.TargetsOf(0);
  Push(tensors, targets, &report, &status);
  EXPECT_EQ(landings.At(0, 1).Copy(), reference::Bytes(landings.At(0, 1).size(), 0xee));

  DeviceRecv recv(plans_->View(0), 8, kRowBytes);
  const std::vector<LandingSource> sources = landings.SourcesOf(0);
  recv.args.sources = sources.data();
  recv.args.gate.status = &status;
  Execute(LandRowsLaunches(ForOne(recv.args), device_.shape), device_);
  EXPECT_EQ(recv.rows.Copy(), reference::Bytes(recv.rows.size(), 0));
  EXPECT_EQ(recv.weights, std::vector<float>(8, 0.0f));
}

TEST_F(TwoRanksTest, APushToARankThatReadsTheRowsItselfLandsNothing) {
  const DeviceTensors tensors(inputs_.rows, inputs_.weights);
  Landings landings(*plans_, 2, kRowBytes);
  ReportWord report = kNoReport;
  std::vector<LandingTarget> targets = landings.TargetsOf(0);
  targets[1] = {nullptr, 0, kReadWhereTheyLie};
  Push(tensors, targets, &report);
  EXPECT_EQ(report, kNoReport);
  EXPECT_EQ(landings.At(0, 1).Copy(), reference::Bytes(landings.At(0, 1).size(), 0xee));
  EXPECT_NE(landings.At(0, 0).Copy(), reference::Bytes(landings.At(0, 0).size(), 0xee));
}

// What the landing held before is not taken for this operation's.
TEST_F(TwoRanksTest, APushThatDoesNotFitIsNamedAndWritesNothingButAHeaderOfZeros) {
  const DeviceTensors tensors(inputs_.rows, inputs_.weights);
  Landings landings(*plans_, 2, kRowBytes);
  ReportWord report = kNoReport;
  std::vector<LandingTarget> targets = landings.TargetsOf(0);
  targets[1].bytes -= 1;
  Push(tensors, targets, &report);
  EXPECT_EQ(ReadReport(report).fault, KernelFault::kBufferTooSmall);
  EXPECT_EQ(ReadReport(report).index, 1);
  reference::Bytes closed(landings.At(0, 1).size(), 0xee);
  std::fill_n(closed.begin(), sizeof(LandingHeader), 0);
  EXPECT_EQ(landings.At(0, 1).Copy(), closed);

  // More tokens than the receiver was told of.
  for (const bool none : {false, true}) {
    targets = landings.TargetsOf(0);
    targets[1].max_rows -= 1;
    if (none) targets[1] = {};
    report = kNoReport;
    Push(tensors, targets, &report);
    EXPECT_EQ(ReadReport(report).fault, KernelFault::kBufferTooSmall);
    EXPECT_EQ(ReadReport(report).index, 1);
    EXPECT_EQ(landings.At(0, 1).Copy(), closed);
  }
}

// A table that was made up leads nowhere: nothing is written outside the receive buffers, and the
// route is named.
TEST_F(TwoRanksTest, RoutesThatLeadNowhereAreNamed) {
  const DeviceTensors tensors(inputs_.rows, inputs_.weights);
  const PlanRoute bad[] = {{2, 0}, {-2, 0}, {0, -1}, {0, 0x7fffffff}};
  for (const PlanRoute& route : bad) {
    std::vector<PlanRoute> table(plans_->View(0).table, plans_->View(0).table + 6);
    table[4] = route;
    std::vector<std::unique_ptr<DeviceRecv>> recvs;
    std::vector<RecvTarget> targets;
    for (int r = 0; r < 2; ++r) {
      recvs.push_back(std::make_unique<DeviceRecv>(plans_->View(r), 8, kRowBytes));
      targets.push_back(recvs.back()->Target());
    }
    ReportWord report = kNoReport;
    PushDirectArgs args = DirectArgs(plans_->View(0), tensors.rows[0], tensors.weights[0].data(),
                                     kRowBytes, targets, &report);
    args.table = table.data();
    Execute(PushDirectLaunches(ForOne(args), device_.shape), device_);
    // A slot beyond the capacity is a drop.
    const bool is_fault = route.slot != 0x7fffffff;
    EXPECT_EQ(ReadReport(report).fault, is_fault ? KernelFault::kPlanRoute : KernelFault::kNone);
    EXPECT_EQ(ReadReport(report).index, is_fault ? 4 : -1);
  }
}

// Slots of 300,000 rows of 7,168 bf16, 4.3 GB, which one rank gets where all ranks' tokens go to it. Offsets of 32 bits would wrap.
TEST(PushDirectTest, SlotsFarIntoABufferAreFound) {
  constexpr std::uint64_t kRowBytes = 14336;
  constexpr std::int32_t kRows = 300'000;
  constexpr PlanRoute kTable[] = {{0, kRows - 1}, {0, 150'000}, {0, 0}};  // One token's.
  Random random(3);
  const DeviceTensors tensors({RandomBytes(random, kRowBytes)}, {});
  for (const std::int64_t min_bulk_row_bytes : {std::int64_t{0}, INT64_MAX}) {
    const VastRegion rows(kRows * kRowBytes);
    const RecvTarget target = {rows.data(), nullptr, kRows};
    ReportWord report = kNoReport;
    PushDirectArgs args;
    args.table = kTable;
    args.rows = tensors.rows[0].data();
    args.targets = &target;
    args.num_tokens = 1;
    args.row_bytes = kRowBytes;
    args.top_k = 3;
    args.num_ranks = 1;
    args.report = &report;
    const Device device = {{2, 90, 0, min_bulk_row_bytes}, HostOrder::kForward};
    Execute(PushDirectLaunches(ForOne(args), device.shape), device);
    EXPECT_EQ(report, kNoReport);
    for (const PlanRoute& route : kTable) {
      const std::uint8_t* slot = rows.data() + route.slot * kRowBytes;
      EXPECT_EQ(reference::Bytes(slot, slot + kRowBytes), tensors.rows[0].Copy()) << route.slot;
    }
  }
}

class ReadRowsTest : public TwoRanksTest {
 protected:
  ReadRowsTest() : tensors_(inputs_.rows, inputs_.weights) {
    for (int r = 0; r < 2; ++r) {
      const auto at = static_cast<std::size_t>(r);
      memory_.push_back(std::make_unique<DeviceStage>(plans_->View(r), kRowBytes));
      stages_.push_back(memory_.back()->stage);
      Execute(StageRowsLaunches(StagingArgs(plans_->View(r), tensors_.rows[at],
                                            tensors_.weights[at].data(), kRowBytes, stages_[at]),
                                device_.shape),
              device_);
    }
  }

  // What rank 0 has then; `ended`: its session's word.
  std::unique_ptr<DeviceRecv> Read(std::uint32_t ended = 0) {
    auto recv = std::make_unique<DeviceRecv>(plans_->View(0), kCapacity, kRowBytes);
    Execute(ReadRowsLaunches(ReadingArgs(plans_->View(0), *recv, stages_), device_.shape), device_);
    CloseRowsArgs close;
    close.ended = &ended;
    close.report = &recv->report;
    close.report_out = &told_;
    close.rows = recv->rows.data();
    close.weights = recv->weights.data();
    close.num_rows = kCapacity;
    close.num_weights = kCapacity;
    close.row_bytes = kRowBytes;
    Execute(CloseRowsLaunches(close, device_.shape), device_);
    return recv;
  }
  static bool IsZero(const DeviceRecv& recv) {
    const reference::Bytes rows = recv.rows.Copy();
    return rows == reference::Bytes(rows.size()) &&
           recv.weights == std::vector<float>(recv.weights.size());
  }

  static constexpr std::int64_t kCapacity = 8;
  DeviceTensors tensors_;
  std::vector<std::unique_ptr<DeviceStage>> memory_;
  std::vector<ScatterStage> stages_;
  ReportWord told_ = 0;
};

TEST_F(ReadRowsTest, GoodStagesGiveTheReferencesRows) {
  const auto recv = Read();
  const reference::ScatterResult want =
      reference::Scatter(problem_, 0, inputs_.rows, inputs_.weights, kRowBytes, kCapacity);
  EXPECT_EQ(recv->rows.Copy(), want.rows);
  EXPECT_EQ(recv->weights, want.weights);
  EXPECT_EQ(told_, kNoReport);
}

// Whatever stands in a peer's stage: zeros, the peer is named, and nothing outside of the stages is read.
TEST_F(ReadRowsTest, AStageThatIsNotOfThisOperationLeavesZerosAndIsNamed) {
  const struct {
    KernelFault fault;
    std::function<void(ScatterStage&)> damage;
  } all[] = {
      {KernelFault::kStageMagic, [](ScatterStage& s) { s.header->magic = 0; }},
      {KernelFault::kStagePlanId, [](ScatterStage& s) { s.header->plan_id += 1; }},
      {KernelFault::kStagePlanId, [](ScatterStage& s) { s.header->epoch += 1; }},
      {KernelFault::kStageRank, [](ScatterStage& s) { s.header->rank = 0; }},
      {KernelFault::kStageNumRows, [](ScatterStage& s) { s.header->num_tokens = 0xffffffff; }},
      {KernelFault::kStageRouteRow, [](ScatterStage& s) { s.header->num_tokens = 0; }},
      {KernelFault::kStageRouteRow, [](ScatterStage& s) { s.experts[0].first_route = -1; }},
      {KernelFault::kStageRouteRow, [](ScatterStage& s) { s.experts[0].first_route = INT32_MAX; }},
      {KernelFault::kStageRouteRow, [](ScatterStage& s) { s.order[0] = -1; }},
      {KernelFault::kStageRouteRow, [](ScatterStage& s) { s.order[0] = INT32_MAX; }}};
  for (const auto& one : all) {
    const reference::Bytes head = memory_[1]->head.Copy();
    const reference::Bytes order = memory_[1]->order.Copy();
    one.damage(stages_[1]);
    EXPECT_TRUE(IsZero(*Read()));
    EXPECT_EQ(ReadReport(told_).fault, one.fault);
    EXPECT_EQ(ReadReport(told_).index, 1) << "the peer";
    std::copy(head.begin(), head.end(), memory_[1]->head.data());
    std::copy(order.begin(), order.end(), memory_[1]->order.data());
  }
  EXPECT_FALSE(IsZero(*Read()));
}

// Its stage may hold another operation's rows by then.
TEST_F(ReadRowsTest, ASessionThatHasEndedMeanwhileLeavesZeros) {
  EXPECT_TRUE(IsZero(*Read(/*ended=*/1)));
  EXPECT_EQ(told_, kNoReport);
}

// Rows of several bulk chunks too, in one part, so that both buffers take turns.
TEST_F(TwoRanksTest, CopyInMovesLiveRowsAndNothingOnABadStatus) {
  Random random(9);
  constexpr std::int64_t kLive = 33;
  for (const std::uint64_t row_bytes : {1u, 6u, 20u, 48u, 8208u, 24592u}) {
    const reference::Bytes bytes = RandomBytes(random, 40 * row_bytes);
    const DeviceTensors tensors({bytes}, {});
    for (const std::uint32_t status : {1u, 5u}) {
      for (const std::int64_t min_bulk_row_bytes : {std::int64_t{0}, INT64_MAX}) {
        const Device device = {{2, 90, 0, min_bulk_row_bytes}, HostOrder::kShuffled};
        const Region to(40 * row_bytes);
        Execute(CopyRowsLaunches(
                    {tensors.rows[0].data(), to.data(), 40, row_bytes, &kLive, {&status, nullptr}},
                    device.shape),
                device);
        reference::Bytes want(40 * row_bytes, 0xee);
        if (status == 1) std::copy_n(bytes.begin(), kLive * row_bytes, want.begin());
        EXPECT_EQ(to.Copy(), want) << row_bytes;
      }
    }
  }
}

// Rows behind the live ones are not there to be read.
TEST_F(TwoRanksTest, CopyOutWritesZerosBehindLiveRowsAndReadsNoneOfTheirs) {
  Random random(10);
  for (const std::int64_t live : {0, 1, 33, 40, 99}) {
    for (const std::int64_t min_bulk_row_bytes : {std::int64_t{0}, INT64_MAX}) {
      constexpr std::uint64_t kRowBytes = 8208;
      const std::int64_t there = std::min<std::int64_t>(live, 40);
      const reference::Bytes bytes = RandomBytes(random, there * kRowBytes);
      const DeviceTensors tensors({bytes}, {});
      const Device device = {{2, 90, 0, min_bulk_row_bytes}, HostOrder::kShuffled};
      const Region to(40 * kRowBytes);
      Execute(CopyRowsLaunches(
                  {tensors.rows[0].data(), to.data(), 40, kRowBytes, &live, {}, /*zeros=*/true},
                  device.shape),
              device);
      reference::Bytes want(40 * kRowBytes, 0);
      std::copy(bytes.begin(), bytes.end(), want.begin());
      EXPECT_EQ(to.Copy(), want) << live;
    }
  }
}

// sm_120 has 99 KB of shared memory, and a block of the bulk movers wants 128.
TEST(BulkMoverTest, IsForDevicesThatHaveTheMemoryForIt) {
  EXPECT_TRUE(MovesInBulk(8192, {2, 90, 0, 4096}));
  EXPECT_FALSE(MovesInBulk(8192, {2, 120, 0, 4096, 99 << 10}));
  EXPECT_FALSE(MovesInBulk(8192, {2, 90, 0}));
  EXPECT_FALSE(MovesInBulk(2048, {2, 90, 0, 4096}));
  EXPECT_FALSE(MovesInBulk(8192, {2, 80, 0, 4096}));
}

}  // namespace
}  // namespace epd::cuda
