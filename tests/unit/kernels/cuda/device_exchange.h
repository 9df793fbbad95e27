// All ranks of one exchange with the CUDA kernels, run on the host: what a worker would launch, and
// the memory that it would launch it on.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"
#include "tests/fakes/cuda/host_run.h"
#include "tests/unit/kernels/exchange.h"

namespace epd::cuda {

// The configurations under test: which variant runs, on how many blocks, in which order.
struct Device {
  DeviceShape shape;
  HostOrder order = HostOrder::kForward;
};

inline Device RandomDevice(Random& random) {
  Device device;
  device.shape.num_sms = static_cast<std::int32_t>(Uniform(random, 1, 5));
  device.shape.max_num_sms = static_cast<std::int32_t>(Uniform(random, 0, 2));
  device.shape.compute_capability = Uniform(random, 0, 1) == 0 ? 80 : 90;
  device.shape.min_bulk_row_bytes = Uniform(random, 0, 1) == 0 ? 0 : INT64_MAX;
  device.order = static_cast<HostOrder>(Uniform(random, 0, 2));
  return device;
}

inline void Execute(const LaunchList& list, const Device& device) {
  ASSERT_TRUE(RunOnHost(list, device.order));
}

// Zeros that take memory only where somebody writes: a buffer of more bytes than 32 bits can count.
class VastRegion {
 public:
  explicit VastRegion(std::size_t bytes)
      : bytes_(bytes),
        data_(
            static_cast<std::uint8_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    EXPECT_NE(static_cast<void*>(data_), MAP_FAILED);
  }
  ~VastRegion() { munmap(data_, bytes_); }
  VastRegion(const VastRegion&) = delete;
  VastRegion& operator=(const VastRegion&) = delete;

  std::uint8_t* data() const { return data_; }

 private:
  const std::size_t bytes_;
  std::uint8_t* const data_;
};

// What a step does for each of several ranks, or for one, in memory that host and device share here.
template <typename Args>
ArgsOfEach<Args> ForEach(std::vector<Args>& all) {
  return {all.data(), all.data(), static_cast<std::int32_t>(all.size())};
}
template <typename Args>
ArgsOfEach<Args> ForOne(Args& args) {
  return {&args, &args, 1};
}

// Scratch of exactly the bytes that a Take function asks for, full of 0xee.
template <typename Take>
Region MakeScratch(Take take) {
  ScratchCursor measure(nullptr);
  take(measure);
  Region memory(measure.used());
  ScratchCursor cursor(memory.data());
  take(cursor);
  return memory;
}

// One rank's build of a plan on the device.
struct DevicePlan {
  DevicePlan(const reference::Problem& problem, int rank, const TopkIndices& topk,
             const std::int32_t* counts)
      : plan(RoutingPlanBytes(problem.Spec())),
        token_counts(NumLocalExperts(problem.Spec(), rank), -7),
        scratch(MakeScratch([this, &problem](ScratchCursor& cursor) {
          args.scratch = TakePlanScratch(problem.Spec(), cursor);
        })) {
    args.spec = problem.Spec();
    args.rank = rank;
    args.ids = kTestIds;
    args.experts = {topk.data, topk.type, problem.num_experts, &report};
    args.tiling = {topk.num_tokens, problem.top_k, problem.num_experts};
    args.counts = counts;
    args.plan = plan.data();
    args.token_counts = token_counts.data();
    args.total_recv = &total_recv;
    args.report = &report;
  }
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  BuildPlanOnDeviceArgs args;
  ReportWord report = kNoReport;
  Region plan;
  std::vector<std::int32_t> token_counts;
  std::int32_t total_recv = -7;
  Region scratch;
};

// Rows and weights of all ranks, in memory aligned as staging is.
struct DeviceTensors {
  DeviceTensors(const std::vector<reference::Bytes>& from_rows,
                const std::vector<std::vector<float>>& from_weights)
      : weights(from_weights) {
    for (const reference::Bytes& bytes : from_rows) {
      rows.emplace_back(bytes.size());
      std::copy(bytes.begin(), bytes.end(), rows.back().data());
    }
  }
  std::vector<Region> rows;
  std::vector<std::vector<float>> weights;
};

// The receiving end of one rank.
struct DeviceRecv {
  DeviceRecv(const RoutingPlanView& view, std::int64_t capacity, std::uint64_t row_bytes)
      : rows(capacity * row_bytes),
        weights(capacity, -1.0f),
        scratch(MakeScratch([this, &view, capacity](ScratchCursor& cursor) {
          args.index.num_locals = NumLocalExperts(view.spec, view.rank);
          args.capacity = capacity;
          TakeLandScratch(view.spec, cursor, &args);
        })) {
    args.index.spec = view.spec;
    args.index.counts = view.counts;
    args.index.rank = view.rank;
    args.plan_id = view.ids.plan_id;
    args.row_bytes = row_bytes;
    args.recv_rows = rows.data();
    args.recv_weights = weights.data();
    args.report = &report;
    args.gate.report = &report;
  }
  DeviceRecv(const DeviceRecv&) = delete;
  DeviceRecv& operator=(const DeviceRecv&) = delete;

  RecvTarget Target() { return {rows.data(), weights.data(), args.capacity}; }

  LandRowsArgs args;
  ReportWord report = kNoReport;
  Region rows;
  std::vector<float> weights;
  Region scratch;
};

// How many tokens of a plan go to each rank, as the device counts them.
inline std::vector<std::int32_t> DestinationCounts(const RoutingPlanView& view,
                                                   const Device& device = {}) {
  const Tiling tiling = {view.num_tokens, view.spec.top_k, view.spec.num_ranks};
  std::vector<std::int32_t> tiles(static_cast<std::size_t>(tiling.NumCounts()), -7);
  std::vector<std::int32_t> totals(static_cast<std::size_t>(view.spec.num_ranks), -7);
  ReportWord report = kNoReport;
  Execute(CountDestinationsLaunches(
              {.routes = {view.table, view.spec.top_k, view.spec.num_ranks, &report},
               .tiling = tiling,
               .tiles = tiles.data(),
               .totals = totals.data()},
              device.shape),
          device);
  EXPECT_EQ(report, kNoReport);
  return totals;
}

// The landings of every (source, destination), and one rank's push into them.
class Landings {
 public:
  // Each as long as the sender's tokens for the destination; with `spare` so many rows longer where the counts allow it.
  Landings(const Plans& plans, int num_ranks, std::uint64_t row_bytes, std::int64_t spare = 0)
      : num_ranks_(num_ranks) {
    for (int s = 0; s < num_ranks; ++s) {
      const std::vector<std::int32_t> tokens = DestinationCounts(plans.View(s));
      for (int d = 0; d < num_ranks; ++d) {
        const RoutingPlanView& view = plans.View(d);
        const std::int64_t bound = LandingBound(view.spec, view.counts, s, d);
        EXPECT_LE(tokens[static_cast<std::size_t>(d)], bound);
        max_rows_.push_back(std::min(bound, tokens[static_cast<std::size_t>(d)] + spare));
        memory_.emplace_back(LandingBytes(max_rows_.back(), view.spec.top_k, row_bytes));
      }
    }
  }
  Region& At(int source, int destination) { return memory_[source * num_ranks_ + destination]; }
  std::vector<LandingTarget> TargetsOf(int source) {
    std::vector<LandingTarget> targets;
    for (int d = 0; d < num_ranks_; ++d) {
      targets.push_back({At(source, d).data(), At(source, d).size(), MaxRows(source, d)});
    }
    return targets;
  }
  std::vector<LandingSource> SourcesOf(int destination) {
    std::vector<LandingSource> sources;
    for (int s = 0; s < num_ranks_; ++s) {
      sources.push_back(
          {At(s, destination).data(), At(s, destination).size(), MaxRows(s, destination)});
    }
    return sources;
  }

 private:
  std::int64_t MaxRows(int source, int destination) const {
    return max_rows_[static_cast<std::size_t>(source * num_ranks_ + destination)];
  }

  int num_ranks_;
  std::vector<Region> memory_;
  std::vector<std::int64_t> max_rows_;
};

inline PushDirectArgs DirectArgs(const RoutingPlanView& view, const Region& rows,
                                 const float* weights, std::uint64_t row_bytes,
                                 const std::vector<RecvTarget>& targets, ReportWord* report) {
  PushDirectArgs args;
  args.table = view.table;
  args.rows = rows.data();
  args.weights = weights;
  args.targets = targets.data();
  args.num_tokens = view.num_tokens;
  args.row_bytes = row_bytes;
  args.top_k = view.spec.top_k;
  args.num_ranks = view.spec.num_ranks;
  args.report = report;
  args.gate.report = nullptr;
  return args;
}

// One rank's stage of a scatter, in pieces of exactly their sizes.
struct DeviceStage {
  DeviceStage(const RoutingPlanView& view, std::uint64_t row_bytes)
      : head(PlanCountsOffset(view.spec.num_experts)),
        order(view.num_tokens * view.spec.top_k * 4),
        weights(view.num_tokens * view.spec.top_k * 4),
        rows(view.num_tokens * row_bytes) {
    stage.header = reinterpret_cast<PlanHeader*>(head.data());
    stage.experts = reinterpret_cast<PlanExpert*>(head.data() + sizeof(PlanHeader));
    stage.order = reinterpret_cast<std::int32_t*>(order.data());
    stage.weights = reinterpret_cast<float*>(weights.data());
    stage.rows = rows.data();
  }
  Region head, order, weights, rows;
  ScatterStage stage;
};

inline StageRowsArgs StagingArgs(const RoutingPlanView& view, const Region& rows,
                                 const float* weights, std::uint64_t row_bytes,
                                 const ScatterStage& stage) {
  StageRowsArgs args;
  args.plan = static_cast<const std::uint8_t*>(view.plan);
  args.spec = view.spec;
  args.num_tokens = view.num_tokens;
  args.rows = rows.data();
  args.weights = weights;
  args.row_bytes = row_bytes;
  args.stage = stage;
  return args;
}

// What fills `recv` out of the stages of all ranks.
inline ReadRowsArgs ReadingArgs(const RoutingPlanView& view, DeviceRecv& recv,
                                const std::vector<ScatterStage>& stages) {
  ReadRowsArgs args;
  args.index = recv.args.index;
  args.plan = static_cast<const std::uint8_t*>(view.plan);
  args.sources = stages.data();
  args.row_bytes = recv.args.row_bytes;
  args.recv_rows = recv.args.recv_rows;
  args.recv_weights = recv.args.recv_weights;
  args.capacity = recv.args.capacity;
  args.report = &recv.report;
  return args;
}

inline PushLandingArgs LandingArgs(const RoutingPlanView& view, const Region& rows,
                                   const float* weights, std::uint64_t row_bytes,
                                   const std::vector<LandingTarget>& targets, ReportWord* report) {
  PushLandingArgs args;
  args.routes = {view.table, view.spec.top_k, view.spec.num_ranks, report};
  args.tiling = {view.num_tokens, view.spec.top_k, view.spec.num_ranks};
  args.spec = view.spec;
  args.rank = view.rank;
  args.plan_id = view.ids.plan_id;
  args.rows = rows.data();
  args.weights = weights;
  args.row_bytes = row_bytes;
  args.targets = targets.data();
  args.report = report;
  args.gate.report = report;
  return args;
}

// Pushes all ranks' rows into landings, as the ranks of one worker; `weights` may be empty for none.
inline void PushAll(const Plans& plans, const DeviceTensors& tensors, std::uint64_t row_bytes,
                    const Device& device, Landings& landings) {
  const std::size_t num_ranks = tensors.rows.size();
  std::vector<std::vector<LandingTarget>> targets;
  std::vector<ReportWord> reports(num_ranks, kNoReport);
  std::vector<Region> scratch;
  std::vector<PushLandingArgs> all;
  for (std::size_t s = 0; s < num_ranks; ++s) {
    const RoutingPlanView& view = plans.View(static_cast<int>(s));
    targets.push_back(landings.TargetsOf(static_cast<int>(s)));
    const float* weights = tensors.weights.empty() ? nullptr : tensors.weights[s].data();
    all.push_back(LandingArgs(view, tensors.rows[s], weights, row_bytes, targets[s], &reports[s]));
    scratch.push_back(MakeScratch(
        [&view, &all](ScratchCursor& cursor) { TakePushScratch(view.spec, cursor, &all.back()); }));
  }
  Execute(PushLandingLaunches(ForEach(all), device.shape), device);
  EXPECT_EQ(reports, std::vector<ReportWord>(num_ranks, kNoReport));
}

}  // namespace epd::cuda
