// What the row kernels reach, as a part of the copy bandwidth that the same run measures. Prints one
// JSON object; every figure is of the device that it names.
//
//   bench --image FATBIN [--peers] [--divide N] [--times N]
//
// Bytes are counted as they cross the device's memory at least once: a scatter of T tokens to K slots
// reads T rows and writes T * K; a gather reads T * K and writes T; a copy of n bytes reads and writes
// n. Per case the time is the median of single launches, each between two events; "replayed" is a launch's part of a
// graph that holds it many times, which is what a captured decode step sees.
//
// "copy out" moves what has come into a buffer with room for twice as much: "live" as clients do it, with zeros behind
// the rows, "capacity" all of it, as if nobody knew how many there are.
//
// "peers": how fast each GPU reads each other one's memory, where there are several; --peers: nothing else. Where it is only
// tried, --divide makes everything smaller, and --times says how often each case runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"
#include "kernels/routing_plan.h"
#include "tests/gpu/peer_bandwidth.h"
#include "tests/gpu/timed_device.h"

namespace epd::gpu {
namespace {

using cuda::DeviceShape;
using cuda::LaunchList;

// What is copied to see how fast copies are.
constexpr std::size_t kCopiedBytes = std::size_t{512} << 20;
constexpr std::size_t kPeerBytes = std::size_t{256} << 20;

// What is asked for: sizes are divided where it is only tried.
struct Options {
  std::string image;
  std::int64_t divide = 1;
  Repeats repeats;
  bool only_peers = false;
};

// Bytes read and written per second by the driver's own copy, in GB/s.
double CopyBandwidth(TimedDevice& bench, const Driver& driver, std::size_t bytes) {
  const std::size_t before = bench.num_allocated();
  void* from = bench.Allocate(bytes);
  void* to = bench.Allocate(bytes);
  const Timing timing = bench.Time([&] {
    Check(driver,
          driver.MemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to),
                                 reinterpret_cast<CUdeviceptr>(from), bytes, bench.stream()),
          "cuMemcpyDtoDAsync");
  });
  bench.FreeSince(before);
  return 2.0 * static_cast<double>(bytes) / timing.p50_us / 1000.0;
}

int MaxSharedBytes(const Driver& driver, const Device& device) {
  int bytes = 0;
  Check(driver,
        driver.DeviceGetAttribute(&bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                  device.device),
        "cuDeviceGetAttribute");
  return bytes;
}

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
  const std::uint8_t* plan = nullptr;
  const PlanRoute* table = nullptr;
  const std::int32_t* counts = nullptr;
  std::uint8_t* rows = nullptr;       // [T, row_bytes]
  std::uint8_t* recv_rows = nullptr;  // [C, row_bytes]
  float* weights = nullptr;           // [T, K]
  float* recv_weights = nullptr;      // [C]
  cuda::ReportWord* report = nullptr;
};

Problem MakeProblem(TimedDevice& bench, const Shape& shape) {
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
  problem.plan = reinterpret_cast<const std::uint8_t*>(bench.Upload(plan.data(), plan.size()));
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

// A rank alone reads what it has staged.
LaunchList ReadList(TimedDevice& bench, const Problem& problem, const DeviceShape& device) {
  const std::int64_t num_routes = problem.num_tokens * problem.spec.top_k;
  cuda::StageRowsArgs stage;
  stage.plan = problem.plan;
  stage.spec = problem.spec;
  stage.num_tokens = problem.num_tokens;
  stage.rows = problem.rows;
  stage.weights = problem.weights;
  stage.row_bytes = problem.row_bytes;
  auto* const head =
      static_cast<std::uint8_t*>(bench.Allocate(PlanCountsOffset(problem.spec.num_experts)));
  stage.stage = {
      .header = reinterpret_cast<PlanHeader*>(head),
      .experts = reinterpret_cast<PlanExpert*>(head + sizeof(PlanHeader)),
      .order = static_cast<std::int32_t*>(bench.Allocate(num_routes * 4)),
      .weights = static_cast<float*>(bench.Allocate(num_routes * 4)),
      .rows = static_cast<std::uint8_t*>(bench.Allocate(problem.num_tokens * problem.row_bytes))};
  cuda::ReadRowsArgs read;
  cuda::LandRowsArgs scratch;
  scratch.index.num_locals = problem.spec.num_experts;
  cuda::ScratchCursor cursor(bench.Allocate(64 << 20));
  TakeLandScratch(problem.spec, cursor, &scratch);
  read.index = scratch.index;
  read.index.spec = problem.spec;
  read.index.counts = problem.counts;
  read.plan = problem.plan;
  read.sources = bench.Upload(&stage.stage, 1);
  read.row_bytes = problem.row_bytes;
  read.recv_rows = problem.recv_rows;
  read.recv_weights = problem.recv_weights;
  read.capacity = problem.capacity;
  read.report = problem.report;
  bench.TimeList(StageRowsLaunches(stage, device));
  return ReadRowsLaunches(read, device);
}

// The receiver's half alone, behind one push: what a client's epilogue costs.
LaunchList LandList(TimedDevice& bench, const Problem& problem, const DeviceShape& device) {
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

LaunchList GatherList(TimedDevice& bench, const Problem& problem, const DeviceShape& device) {
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

// What each case has made is freed behind it.
class Cases {
 public:
  Cases(TimedDevice& bench, const Shape& shape, double copy_gbps)
      : bench_(bench), shape_(shape), copy_gbps_(copy_gbps), before_(bench.num_allocated()) {}

  void Print(const char* what, const DeviceShape& device, const LaunchList& list, double bytes) {
    Print(what, device, bench_.TimeList(list), bytes);
  }
  void PrintReplayed(const char* what, const DeviceShape& device, const LaunchList& list,
                     double bytes) {
    Print(what, device, bench_.TimeReplay(list), bytes);
  }

 private:
  void Print(const char* what, const DeviceShape& device, Timing timing, double bytes) {
    PrintCase(shape_, what, device, timing, copy_gbps_, bytes);
    bench_.FreeSince(before_);
  }

  TimedDevice& bench_;
  const Shape& shape_;
  const double copy_gbps_;
  const std::size_t before_;
};

void RunCopyOut(TimedDevice& bench, Cases& cases, const Problem& problem,
                const DeviceShape& config) {
  const std::uint64_t bytes = 2 * static_cast<std::uint64_t>(problem.capacity) * problem.row_bytes;
  const std::int64_t live = problem.capacity;
  for (const bool all : {false, true}) {
    auto* const from = static_cast<std::uint8_t*>(bench.Allocate(bytes));
    auto* const to = static_cast<std::uint8_t*>(bench.Allocate(bytes));
    const std::int64_t* const live_on_device = all ? nullptr : bench.Upload(&live, 1);
    // Half is read and all is written; then all of both.
    cases.Print(all ? "copy out capacity" : "copy out live", config,
                CopyOutList(problem, from, to, live_on_device, config),
                (all ? 2.0 : 1.5) * static_cast<double>(bytes));
  }
}

void RunShape(TimedDevice& bench, const Shape& shape, const Device& device, int max_shared_bytes,
              double copy_gbps) {
  const std::size_t before = bench.num_allocated();
  const Problem problem = MakeProblem(bench, shape);
  const double bytes = RowBytesOf(shape);
  Cases cases(bench, shape, copy_gbps);
  for (const int sms : {0, 8, 16, 24, 32, 64}) {
    for (const bool in_bulk : {false, true}) {
      const DeviceShape config = {device.num_sms, device.compute_capability, sms,
                                  in_bulk ? 0 : INT64_MAX, max_shared_bytes};
      if (in_bulk && !MovesInBulk(problem.row_bytes, config)) continue;
      cases.Print(in_bulk ? "scatter read bulk" : "scatter read", config,
                  ReadList(bench, problem, config), bytes);
      cases.Print(in_bulk ? "scatter expand bulk" : "scatter expand", config,
                  LandList(bench, problem, config), bytes);
      if (in_bulk) continue;
      cases.Print("gather reduce", config, GatherList(bench, problem, config), bytes);
    }
  }
  const DeviceShape config = {.num_sms = device.num_sms,
                              .compute_capability = device.compute_capability};
  RunCopyOut(bench, cases, problem, config);
  cases.PrintReplayed("scatter read replayed", config, ReadList(bench, problem, config), bytes);
  cases.PrintReplayed("gather reduce replayed", config, GatherList(bench, problem, config), bytes);
  bench.FreeSince(before);
}

Options Read(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--peers") {
      options.only_peers = true;
    } else if (i + 1 < argc && name == "--image") {
      options.image = argv[++i];
    } else if (i + 1 < argc && name == "--divide") {
      options.divide = std::max(1L, std::atol(argv[++i]));
    } else if (i + 1 < argc && name == "--times") {
      options.repeats = {.warm = 1, .timed = std::max(1, std::atoi(argv[++i]))};
    } else {
      std::fprintf(stderr, "bench: what is %s?\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

// Of the driver's copy, then of each shape.
void RunKernels(const Driver& driver, const Device& device, const void* image,
                const Options& options) {
  TimedDevice bench(driver, image, options.repeats);
  const auto divide = static_cast<std::size_t>(options.divide);
  const double copy_gbps = CopyBandwidth(bench, driver, kCopiedBytes / divide);
  std::printf(" \"copy_gbytes_per_s\": %.1f, \"cases\": [\n  {\"kernel\": \"copy\"}", copy_gbps);
  const Shape shapes[] = {{"train 4096 x 7168 bf16 top-8 of 256", 4096, 7168, 8, 256},
                          {"decode 128 x 7168 bf16 top-8 of 256", 128, 7168, 8, 256},
                          {"decode 128 x 7168 bf16 top-2 of 64", 128, 7168, 2, 64}};
  for (Shape shape : shapes) {
    shape.num_tokens /= options.divide;
    shape.hidden /= options.divide;
    RunShape(bench, shape, device, MaxSharedBytes(driver, device), copy_gbps);
  }
  std::printf("\n],\n");
}

int Main(int argc, char** argv) {
  const Options options = Read(argc, argv);
  Driver driver;
  Device device;
  OpenOrExit(&driver, &device);
  const std::vector<std::max_align_t> image = ReadImage(options.image);
  std::printf(
      "{\"name\": \"bench\", \"device\": \"%s\", \"num_sms\": %d, \"driver\": %d, \"divide\": "
      "%ld,\n",
      device.name.c_str(), device.num_sms, device.driver_version, options.divide);
  if (!options.only_peers) RunKernels(driver, device, image.data(), options);
  const Repeats repeats = {std::min(options.repeats.warm, 3), std::min(options.repeats.timed, 20)};
  std::printf(" \"peers\": ");
  PrintPeers(MeasurePeers(driver, image.data(), repeats,
                          kPeerBytes / static_cast<std::size_t>(options.divide)));
  std::printf("}\n");
  return kPassed;
}

}  // namespace
}  // namespace epd::gpu

int main(int argc, char** argv) { return epd::gpu::Main(argc, argv); }
