// What the row kernels reach, as a part of the copy bandwidth that the same run measures. Prints one
// JSON object; every figure is of the device that it names.
//
//   bench --image FATBIN
//
// Bytes are counted as they cross the device's memory at least once: a scatter of T tokens to K slots
// reads T rows and writes T * K; a gather reads T * K and writes T; a copy of n bytes reads and writes
// n. Per case the time is the median of single launches, each between two events; "replayed" is a launch's part of a
// graph that holds it many times, which is what a captured decode step sees.
//
// "copy out" moves what has come into a buffer with room for twice as much: "live" as clients do it, with zeros behind
// the rows, "capacity" all of it, as if nobody knew how many there are.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"
#include "kernels/routing_plan.h"
#include "tests/gpu/executor.h"

namespace epd::gpu {
namespace {

using cuda::DeviceShape;
using cuda::LaunchList;

constexpr int kWarmups = 10;
constexpr int kTimes = 100;
constexpr int kReplays = 20;

struct Timing {
  double p50_us = 0;
  double p99_us = 0;
};

class Bench {
 public:
  Bench(const Driver& driver, const void* image) : driver_(driver), launcher_(driver, image) {
    Check(driver_, driver_.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    Check(driver_, driver_.EventCreate(&begin_, CU_EVENT_DEFAULT), "cuEventCreate");
    Check(driver_, driver_.EventCreate(&end_, CU_EVENT_DEFAULT), "cuEventCreate");
  }

  void* Allocate(std::size_t bytes) {
    CUdeviceptr memory = 0;
    Check(driver_, driver_.MemAlloc(&memory, bytes), "cuMemAlloc");
    Check(driver_, driver_.MemsetD8(memory, 1, bytes), "cuMemsetD8");
    return reinterpret_cast<void*>(memory);
  }
  void Free(void* memory) { driver_.MemFree(reinterpret_cast<CUdeviceptr>(memory)); }
  int MaxSharedBytes(const Device& device) const {
    int bytes = 0;
    Check(driver_,
          driver_.DeviceGetAttribute(&bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                     device.device),
          "cuDeviceGetAttribute");
    return bytes;
  }
  template <typename T>
  T* Upload(const T* from, std::size_t count) {
    T* to = static_cast<T*>(Allocate(count * sizeof(T) + 16));
    Write(to, from, count);
    return to;
  }
  template <typename T>
  void Write(T* to, const T* from, std::size_t count) {
    Check(driver_, driver_.MemcpyHtoD(reinterpret_cast<CUdeviceptr>(to), from, count * sizeof(T)),
          "cuMemcpyHtoD");
  }

  template <typename Submit>
  Timing Time(Submit submit) {
    std::vector<double> times;
    for (int i = 0; i < kWarmups + kTimes; ++i) {
      Check(driver_, driver_.EventRecord(begin_, stream_), "cuEventRecord");
      submit();
      Check(driver_, driver_.EventRecord(end_, stream_), "cuEventRecord");
      Check(driver_, driver_.EventSynchronize(end_), "cuEventSynchronize");
      float ms = 0;
      Check(driver_, driver_.EventElapsedTime(&ms, begin_, end_), "cuEventElapsedTime");
      if (i >= kWarmups) times.push_back(ms * 1000.0);
    }
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times[times.size() * 99 / 100]};
  }
  Timing TimeList(const LaunchList& list) {
    return Time([&] { launcher_.Launch(list, stream_); });
  }
  // As a captured program runs it: one of kReplays that stand behind each other in a graph.
  Timing TimeReplay(const LaunchList& list) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    Check(driver_, driver_.StreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture");
    for (int i = 0; i < kReplays; ++i) launcher_.Launch(list, stream_);
    Check(driver_, driver_.StreamEndCapture(stream_, &graph), "cuStreamEndCapture");
    Check(driver_, driver_.GraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
    Timing timing =
        Time([&] { Check(driver_, driver_.GraphLaunch(exec, stream_), "cuGraphLaunch"); });
    return {timing.p50_us / kReplays, timing.p99_us / kReplays};
  }

  // Bytes read and written per second by the driver's own copy, in GB/s.
  double CopyBandwidth(std::size_t bytes) {
    void* from = Allocate(bytes);
    void* to = Allocate(bytes);
    const Timing timing = Time([&] {
      Check(driver_,
            driver_.MemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to),
                                    reinterpret_cast<CUdeviceptr>(from), bytes, stream_),
            "cuMemcpyDtoDAsync");
    });
    driver_.MemFree(reinterpret_cast<CUdeviceptr>(from));
    driver_.MemFree(reinterpret_cast<CUdeviceptr>(to));
    return 2.0 * static_cast<double>(bytes) / timing.p50_us / 1000.0;
  }

 private:
  const Driver& driver_;
  GpuLauncher launcher_;
  CUstream stream_ = nullptr;
  CUevent begin_ = nullptr;
  CUevent end_ = nullptr;
};

struct Shape {
  const char* name;
  std::int64_t num_tokens;
  std::int64_t hidden;
  std::int32_t top_k;
  std::int32_t num_experts;
};

// One rank's exchange with itself, planned on the host and uploaded.
struct Problem {
  RoutingSpec spec;
  std::uint64_t row_bytes = 0;
  std::int64_t num_tokens = 0;
  std::int64_t capacity = 0;
  const PlanRoute* table = nullptr;
  const std::int32_t* counts = nullptr;
  std::uint8_t* rows = nullptr;       // [T, row_bytes]
  std::uint8_t* recv_rows = nullptr;  // [C, row_bytes]
  float* weights = nullptr;           // [T, K]
  float* recv_weights = nullptr;      // [C]
  cuda::ReportWord* report = nullptr;
};

Problem MakeProblem(Bench& bench, const Shape& shape) {
  Problem problem;
  RoutingSpec& spec = problem.spec;
  spec.num_ranks = 1;
  spec.num_experts = shape.num_experts;
  spec.top_k = shape.top_k;
  spec.alignment = 128;
  spec.max_tokens = shape.num_tokens;
  std::mt19937 random(1);
  std::vector<std::int32_t> topk(shape.num_tokens * shape.top_k);
  for (std::int64_t t = 0; t < shape.num_tokens; ++t) {
    // Distinct experts for a token, as a router gives.
    for (int k = 0; k < shape.top_k; ++k) {
      const auto begin = topk.begin() + t * shape.top_k;
      do {
        begin[k] = static_cast<std::int32_t>(random() % shape.num_experts);
      } while (std::find(begin, begin + k, begin[k]) != begin + k);
    }
  }
  const TopkIndices indices = {topk.data(), IndexType::kInt32, shape.num_tokens};
  std::vector<std::int32_t> counts(shape.num_experts);
  std::vector<std::int32_t> token_counts(shape.num_experts);
  std::vector<std::uint64_t> plan(RoutingPlanBytes(spec) / 8);
  std::int32_t total = 0;
  RoutingPlanView view;
  const PlanIds ids = {1, 1, 1};
  if (!CountRoutes(spec, indices, counts.data()).ok() ||
      !BuildRoutingPlan({spec, 0, ids, indices, counts.data(), plan.data(), plan.size() * 8,
                         token_counts.data(), &total})
           .ok() ||
      !ViewRoutingPlan({plan.data(), plan.size() * 8, spec, 0, ids}, &view).ok()) {
    std::fprintf(stderr, "the host cannot plan its own problem\n");
    std::exit(kFailed);
  }
  problem.num_tokens = shape.num_tokens;
  problem.row_bytes = static_cast<std::uint64_t>(shape.hidden) * 2;
  problem.capacity = total;
  problem.table = bench.Upload(view.table, topk.size());
  problem.counts = bench.Upload(counts.data(), counts.size());
  problem.rows = static_cast<std::uint8_t*>(bench.Allocate(shape.num_tokens * problem.row_bytes));
  problem.recv_rows = static_cast<std::uint8_t*>(bench.Allocate(total * problem.row_bytes));
  problem.weights = static_cast<float*>(bench.Allocate(topk.size() * 4));
  problem.recv_weights = static_cast<float*>(bench.Allocate(total * 4));
  const cuda::ReportWord none = cuda::kNoReport;
  problem.report = bench.Upload(&none, 1);
  return problem;
}

LaunchList DirectList(Bench& bench, const Problem& problem, const DeviceShape& device) {
  const cuda::RecvTarget target = {problem.recv_rows, problem.recv_weights, problem.capacity};
  cuda::PushDirectArgs args;
  args.table = problem.table;
  args.rows = problem.rows;
  args.weights = problem.weights;
  args.targets = bench.Upload(&target, 1);
  args.num_tokens = problem.num_tokens;
  args.row_bytes = problem.row_bytes;
  args.top_k = problem.spec.top_k;
  args.num_ranks = 1;
  args.report = problem.report;
  return PushDirectLaunches(args, device);
}

// The receiver's half alone, behind one push: what a client's epilogue costs.
LaunchList LandList(Bench& bench, const Problem& problem, const DeviceShape& device) {
  cuda::PushLandingArgs push;
  const std::int64_t bound = std::min(problem.spec.max_tokens, problem.capacity);
  const std::size_t bytes = cuda::LandingBytes(bound, problem.spec.top_k, problem.row_bytes);
  const cuda::LandingTarget target = {static_cast<std::uint8_t*>(bench.Allocate(bytes)), bytes,
                                      bound};
  push.routes = {problem.table, problem.spec.top_k, 1, problem.report};
  push.tiling = {problem.num_tokens, problem.spec.top_k, 1};
  push.spec = problem.spec;
  push.plan_id = 1;
  push.rows = problem.rows;
  push.weights = problem.weights;
  push.row_bytes = problem.row_bytes;
  push.targets = bench.Upload(&target, 1);
  push.report = problem.report;
  cuda::ScratchCursor push_scratch(bench.Allocate(64 << 20));
  TakePushScratch(problem.spec, push_scratch, &push);
  auto* const push_on_device = static_cast<cuda::PushLandingArgs*>(bench.Allocate(sizeof push));
  const LaunchList pushes = PushLandingLaunches({&push, push_on_device, 1}, device);
  bench.Write(push_on_device, &push, 1);
  bench.TimeList(pushes);

  const cuda::LandingSource source = {target.base, bytes, bound};
  cuda::LandRowsArgs land;
  land.index.spec = problem.spec;
  land.index.counts = problem.counts;
  land.index.num_locals = problem.spec.num_experts;
  land.plan_id = 1;
  land.row_bytes = problem.row_bytes;
  land.sources = bench.Upload(&source, 1);
  land.recv_rows = problem.recv_rows;
  land.recv_weights = problem.recv_weights;
  land.capacity = problem.capacity;
  land.report = problem.report;
  land.gate.report = problem.report;
  cuda::ScratchCursor land_scratch(bench.Allocate(64 << 20));
  TakeLandScratch(problem.spec, land_scratch, &land);
  auto* const land_on_device = static_cast<cuda::LandRowsArgs*>(bench.Allocate(sizeof land));
  const LaunchList lands = LandRowsLaunches({&land, land_on_device, 1}, device);
  bench.Write(land_on_device, &land, 1);
  return lands;
}

LaunchList GatherList(Bench& bench, const Problem& problem, const DeviceShape& device) {
  const cuda::GatherSource source = {problem.recv_rows, nullptr, problem.capacity};
  cuda::GatherReduceArgs args;
  args.table = problem.table;
  args.sources = bench.Upload(&source, 1);
  args.out = problem.rows;
  args.num_tokens = problem.num_tokens;
  args.row_bytes = problem.row_bytes;
  args.top_k = problem.spec.top_k;
  args.num_ranks = 1;
  return GatherReduceLaunches(args, DataType::kBfloat16, nullptr, device);
}

// Rows into a buffer of twice as many slots; `live` on the device, or null: all of them.
LaunchList CopyOutList(const Problem& problem, std::uint8_t* from, std::uint8_t* to,
                       const std::int64_t* live, const DeviceShape& device) {
  cuda::CopyRowsArgs args;
  args.from = from;
  args.to = to;
  args.max_rows = 2 * problem.capacity;
  args.row_bytes = problem.row_bytes;
  args.num_rows = live;
  args.zeros = true;
  return CopyRowsLaunches(args, device);
}

double RowBytesOf(const Shape& shape) {
  return static_cast<double>(shape.num_tokens * shape.hidden * 2) * (shape.top_k + 1);
}

void PrintCase(const Shape& shape, const char* what, const DeviceShape& device, Timing timing,
               double copy_gbps, double bytes) {
  const double gbps = bytes / timing.p50_us / 1000.0;
  std::printf(
      ",\n  {\"shape\": \"%s\", \"kernel\": \"%s\", \"sms\": %d, \"p50_us\": %.2f, \"p99_us\": "
      "%.2f, "
      "\"gbytes_per_s\": %.1f, \"of_copy\": %.3f}",
      shape.name, what, device.max_num_sms > 0 ? device.max_num_sms : device.num_sms, timing.p50_us,
      timing.p99_us, gbps, gbps / copy_gbps);
}

void RunCopyOut(Bench& bench, const Shape& shape, const Problem& problem, const Device& device,
                double copy_gbps) {
  const DeviceShape config = {.num_sms = device.num_sms,
                              .compute_capability = device.compute_capability};
  const std::uint64_t bytes = 2 * static_cast<std::uint64_t>(problem.capacity) * problem.row_bytes;
  auto* const from = static_cast<std::uint8_t*>(bench.Allocate(bytes));
  auto* const to = static_cast<std::uint8_t*>(bench.Allocate(bytes));
  const std::int64_t live = problem.capacity;
  const std::int64_t* const live_on_device = bench.Upload(&live, 1);
  // Half is read and all is written; then all of both.
  PrintCase(shape, "copy out live", config,
            bench.TimeList(CopyOutList(problem, from, to, live_on_device, config)), copy_gbps,
            1.5 * static_cast<double>(bytes));
  PrintCase(shape, "copy out capacity", config,
            bench.TimeList(CopyOutList(problem, from, to, nullptr, config)), copy_gbps,
            2.0 * static_cast<double>(bytes));
  bench.Free(from);
  bench.Free(to);
}

void RunShape(Bench& bench, const Shape& shape, const Device& device, double copy_gbps) {
  const Problem problem = MakeProblem(bench, shape);
  const double bytes = RowBytesOf(shape);
  for (const int sms : {0, 8, 16, 24, 32, 64}) {
    for (const bool in_bulk : {false, true}) {
      const DeviceShape config = {device.num_sms, device.compute_capability, sms,
                                  in_bulk ? 0 : INT64_MAX, bench.MaxSharedBytes(device)};
      if (in_bulk && !MovesInBulk(problem.row_bytes, config)) continue;
      PrintCase(shape, in_bulk ? "scatter direct bulk" : "scatter direct", config,
                bench.TimeList(DirectList(bench, problem, config)), copy_gbps, bytes);
      PrintCase(shape, in_bulk ? "scatter expand bulk" : "scatter expand", config,
                bench.TimeList(LandList(bench, problem, config)), copy_gbps, bytes);
      if (in_bulk) continue;
      PrintCase(shape, "gather reduce", config, bench.TimeList(GatherList(bench, problem, config)),
                copy_gbps, bytes);
    }
  }
  RunCopyOut(bench, shape, problem, device, copy_gbps);
  const DeviceShape config = {.num_sms = device.num_sms,
                              .compute_capability = device.compute_capability};
  PrintCase(shape, "scatter direct replayed", config,
            bench.TimeReplay(DirectList(bench, problem, config)), copy_gbps, bytes);
  PrintCase(shape, "gather reduce replayed", config,
            bench.TimeReplay(GatherList(bench, problem, config)), copy_gbps, bytes);
}

int Main(int argc, char** argv) {
  std::string image_path;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--image") == 0) image_path = argv[i + 1];
  }
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  const std::vector<std::max_align_t> image = ReadImage(image_path);
  Bench bench(driver, image.data());
  const double copy_gbps = bench.CopyBandwidth(std::size_t{512} << 20);
  std::printf(
      "{\"name\": \"bench\", \"device\": \"%s\", \"num_sms\": %d, \"driver\": %d,\n"
      " \"copy_gbytes_per_s\": %.1f, \"cases\": [\n  {\"shape\": \"512 MiB\", \"kernel\": "
      "\"copy\"}",
      device.name.c_str(), device.num_sms, device.driver_version, copy_gbps);
  const Shape shapes[] = {{"train 4096 x 7168 bf16 top-8 of 256", 4096, 7168, 8, 256},
                          {"decode 128 x 7168 bf16 top-8 of 256", 128, 7168, 8, 256},
                          {"decode 128 x 7168 bf16 top-2 of 64", 128, 7168, 2, 64}};
  for (const Shape& shape : shapes) RunShape(bench, shape, device, copy_gbps);
  std::printf("\n]}\n");
  return kPassed;
}

}  // namespace
}  // namespace epd::gpu

int main(int argc, char** argv) { return epd::gpu::Main(argc, argv); }
