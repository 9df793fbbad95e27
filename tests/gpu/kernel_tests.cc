// The kernels on the device against the plain reference, bit for bit: plans, both forms of scatter in
// every variant, gather and reduce of every type. Prints one JSON object.
//
//   kernel_tests --image FATBIN [--seeds N]    on the GPU
//   kernel_tests --host [--seeds N]            the same program on the CPU
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scratch.h"
#include "kernels/routing_plan.h"
#include "tests/gpu/executor.h"
#include "tests/unit/kernels/problems.h"
#include "tests/unit/kernels/reference.h"

namespace epd::gpu {
namespace {

using cuda::DeviceShape;
using cuda::kNoReport;
using cuda::LaunchList;
using cuda::ReportWord;

constexpr PlanIds kIds = {0x1234567890abcdef, 7, 42};

// One exchange in the executor's memory, with the CPU's plans.
class Exchange {
 public:
  Exchange(Executor& executor, const reference::Problem& problem)
      : executor_(executor), problem_(problem), spec_(problem.Spec()) {
    if (problem.use_table) spec_.expert_owner = Copy(problem.owner);
    counts_ = New<std::int32_t>(problem.num_ranks * problem.num_experts);
    for (int r = 0; r < problem.num_ranks; ++r) {
      topk_.push_back({Copy(problem.topk[r]), IndexType::kInt64, problem.NumTokens(r)});
      Must(CountRoutes(spec_, topk_[r], counts_ + r * problem.num_experts));
    }
    views_.resize(problem.num_ranks);
    for (int r = 0; r < problem.num_ranks; ++r) {
      plans_.push_back(New<std::uint8_t>(PlanBytes()));
      std::vector<std::int32_t> token_counts(NumLocalExperts(spec_, r) + 1);
      std::int32_t total = 0;
      Must(BuildRoutingPlan({spec_, r, kIds, topk_[r], counts_, plans_[r], PlanBytes(),
                             token_counts.data(), &total}));
      Must(ViewRoutingPlan({plans_[r], PlanBytes(), spec_, r, kIds}, &views_[r]));
    }
  }

  template <typename T>
  T* New(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    void* memory = executor_.Allocate(bytes);
    std::memset(memory, 0xee, bytes);
    return static_cast<T*>(memory);
  }
  template <typename T>
  T* Copy(const std::vector<T>& values) {
    T* memory = New<T>(static_cast<std::int64_t>(values.size()));
    std::copy(values.begin(), values.end(), memory);
    return memory;
  }
  template <typename Take>
  void TakeScratch(Take take) {
    cuda::ScratchCursor measure(nullptr);
    take(measure);
    cuda::ScratchCursor cursor(New<std::uint8_t>(static_cast<std::int64_t>(measure.used())));
    take(cursor);
  }
  ReportWord* NewReport() {
    auto* report = New<ReportWord>(1);
    *report = kNoReport;
    return report;
  }
  std::size_t PlanBytes() const { return RoutingPlanBytes(spec_); }
  std::int64_t Demand() const {
    std::int64_t demand = 0;
    for (int r = 0; r < problem_.num_ranks; ++r) {
      demand = std::max(demand, TotalRecv(spec_, counts_, r));
    }
    return demand;
  }

  static void Must(const KernelError& error) {
    if (error.ok()) return;
    char text[512];
    FormatKernelError(error, text, sizeof(text));
    std::fprintf(stderr, "%s\n", text);
    std::exit(kFailed);
  }

  Executor& executor_;
  const reference::Problem& problem_;
  RoutingSpec spec_;
  std::int32_t* counts_ = nullptr;
  std::vector<TopkIndices> topk_;
  std::vector<std::uint8_t*> plans_;
  std::vector<RoutingPlanView> views_;
};

bool PlansAreRight(Exchange& x, const DeviceShape& shape) {
  bool right = true;
  for (int r = 0; r < x.problem_.num_ranks; ++r) {
    cuda::BuildPlanOnDeviceArgs args;
    args.spec = x.spec_;
    args.rank = r;
    args.ids = kIds;
    args.report = x.NewReport();
    args.experts = {x.topk_[r].data, x.topk_[r].type, x.spec_.num_experts, args.report};
    args.tiling = {x.topk_[r].num_tokens, x.spec_.top_k, x.spec_.num_experts};
    args.counts = x.counts_;
    args.plan = x.New<std::uint8_t>(static_cast<std::int64_t>(x.PlanBytes()));
    args.token_counts = x.New<std::int32_t>(NumLocalExperts(x.spec_, r));
    args.total_recv = x.New<std::int32_t>(1);
    x.TakeScratch([&](cuda::ScratchCursor& cursor) {
      args.scratch = cuda::TakePlanScratch(x.spec_, cursor);
    });
    right = x.executor_.Run(BuildPlanLaunches(args, shape)) && right;
    right = right && *args.report == kNoReport &&
            std::memcmp(args.plan, x.plans_[r], x.PlanBytes()) == 0 &&
            *args.total_recv == TotalRecv(x.spec_, x.counts_, r);
  }
  return right;
}

struct Recv {
  cuda::LandRowsArgs args;
  cuda::LandingSource* sources;
};

Recv MakeRecv(Exchange& x, int rank, std::int64_t capacity, std::uint64_t row_bytes) {
  Recv recv = {};
  recv.args.index.spec = x.spec_;
  recv.args.index.counts = x.views_[rank].counts;
  recv.args.index.rank = rank;
  recv.args.index.num_locals = NumLocalExperts(x.spec_, rank);
  recv.args.plan_id = kIds.plan_id;
  recv.args.row_bytes = row_bytes;
  recv.args.capacity = capacity;
  recv.args.recv_rows = x.New<std::uint8_t>(capacity * static_cast<std::int64_t>(row_bytes));
  recv.args.recv_weights = x.New<float>(capacity);
  recv.args.report = x.NewReport();
  recv.args.gate.report = recv.args.report;
  x.TakeScratch([&](cuda::ScratchCursor& cursor) { TakeLandScratch(x.spec_, cursor, &recv.args); });
  recv.sources = x.New<cuda::LandingSource>(x.spec_.num_ranks);
  return recv;
}

bool PushLanding(Exchange& x, int rank, const std::uint8_t* rows, const float* weights,
                 std::vector<Recv>& recvs, const DeviceShape& shape) {
  const RoutingPlanView& view = x.views_[rank];
  const std::uint64_t row_bytes = recvs[0].args.row_bytes;
  auto* targets = x.New<cuda::LandingTarget>(x.spec_.num_ranks);
  for (int d = 0; d < x.spec_.num_ranks; ++d) {
    const std::int64_t max_rows = cuda::LandingBound(x.spec_, x.counts_, rank, d);
    const std::size_t bytes = cuda::LandingBytes(max_rows, x.spec_.top_k, row_bytes);
    targets[d] = {x.New<std::uint8_t>(static_cast<std::int64_t>(bytes)), bytes, max_rows};
    recvs[d].sources[rank] = {targets[d].base, bytes, max_rows};
  }
  auto& args = *x.New<cuda::PushLandingArgs>(1);
  args = {};
  args.report = x.NewReport();
  args.gate.report = args.report;
  args.routes = {view.table, x.spec_.top_k, x.spec_.num_ranks, args.report};
  args.tiling = {view.num_tokens, x.spec_.top_k, x.spec_.num_ranks};
  args.spec = x.spec_;
  args.rank = rank;
  args.plan_id = kIds.plan_id;
  args.rows = rows;
  args.weights = weights;
  args.row_bytes = row_bytes;
  args.targets = targets;
  x.TakeScratch([&](cuda::ScratchCursor& cursor) { TakePushScratch(x.spec_, cursor, &args); });
  return x.executor_.Run(PushLandingLaunches({&args, &args, 1}, shape)) &&
         *args.report == kNoReport;
}

bool PushDirect(Exchange& x, int rank, const std::uint8_t* rows, const float* weights,
                std::vector<Recv>& recvs, const DeviceShape& shape) {
  auto* targets = x.New<cuda::RecvTarget>(x.spec_.num_ranks);
  for (int d = 0; d < x.spec_.num_ranks; ++d) {
    const cuda::LandRowsArgs& to = recvs[d].args;
    targets[d] = {to.recv_rows, to.recv_weights, to.capacity};
  }
  auto& args = *x.New<cuda::PushDirectArgs>(1);
  args = {};
  args.table = x.views_[rank].table;
  args.rows = rows;
  args.weights = weights;
  args.targets = targets;
  args.num_tokens = x.views_[rank].num_tokens;
  args.row_bytes = recvs[0].args.row_bytes;
  args.top_k = x.spec_.top_k;
  args.num_ranks = x.spec_.num_ranks;
  args.report = x.NewReport();
  const LaunchList list = PushDirectLaunches({&args, &args, 1}, shape);
  return (list.size() == 0 || x.executor_.Run(list)) && *args.report == kNoReport;
}

// Each rank stages its rows, and then each reads what is for it.
bool StageAndRead(Exchange& x, const std::vector<reference::Bytes>& rows,
                  const std::vector<std::vector<float>>& weights, std::vector<Recv>& recvs,
                  const DeviceShape& shape) {
  auto* stages = x.New<cuda::ScatterStage>(x.spec_.num_ranks);
  const std::uint64_t row_bytes = recvs[0].args.row_bytes;
  for (int r = 0; r < x.spec_.num_ranks; ++r) {
    const RoutingPlanView& view = x.views_[r];
    const std::int64_t num_routes = view.num_tokens * x.spec_.top_k;
    auto* const head = x.New<std::uint8_t>(PlanCountsOffset(x.spec_.num_experts));
    stages[r] = {
        .header = reinterpret_cast<PlanHeader*>(head),
        .experts = reinterpret_cast<PlanExpert*>(head + sizeof(PlanHeader)),
        .order = x.New<std::int32_t>(num_routes),
        .weights = x.New<float>(num_routes),
        .rows = x.New<std::uint8_t>(view.num_tokens * static_cast<std::int64_t>(row_bytes))};
    cuda::StageRowsArgs args;
    args.plan = static_cast<const std::uint8_t*>(view.plan);
    args.spec = x.spec_;
    args.num_tokens = view.num_tokens;
    args.rows = x.Copy(rows[r]);
    args.weights = x.Copy(weights[r]);
    args.row_bytes = row_bytes;
    args.stage = stages[r];
    if (!x.executor_.Run(StageRowsLaunches(args, shape))) return false;
  }
  bool right = true;
  for (int r = 0; r < x.spec_.num_ranks; ++r) {
    const cuda::LandRowsArgs& to = recvs[r].args;
    cuda::ReadRowsArgs args;
    args.index = to.index;
    args.plan = static_cast<const std::uint8_t*>(x.views_[r].plan);
    args.sources = stages;
    args.row_bytes = row_bytes;
    args.recv_rows = to.recv_rows;
    args.recv_weights = to.recv_weights;
    args.capacity = to.capacity;
    args.report = to.report;
    right = x.executor_.Run(ReadRowsLaunches(args, shape)) && *to.report == kNoReport && right;
  }
  return right;
}

enum class Form { kDirect, kLanding, kRead };

bool ScattersAreRight(Exchange& x, std::uint64_t row_bytes, std::int64_t capacity, Form form,
                      const DeviceShape& shape, Random& random) {
  std::vector<reference::Bytes> rows;
  std::vector<std::vector<float>> weights;
  std::vector<Recv> recvs;
  for (int r = 0; r < x.problem_.num_ranks; ++r) {
    rows.push_back(RandomBytes(random, x.problem_.NumTokens(r) * row_bytes));
    weights.push_back(RandomFloats(random, x.problem_.topk[r].size()));
    recvs.push_back(MakeRecv(x, r, capacity, row_bytes));
  }
  bool right = form != Form::kRead || StageAndRead(x, rows, weights, recvs, shape);
  for (int r = 0; form != Form::kRead && r < x.problem_.num_ranks; ++r) {
    const auto push = form == Form::kDirect ? PushDirect : PushLanding;
    right = push(x, r, x.Copy(rows[r]), x.Copy(weights[r]), recvs, shape) && right;
  }
  for (int r = 0; r < x.problem_.num_ranks; ++r) {
    auto& args = *x.New<cuda::LandRowsArgs>(1);
    args = recvs[r].args;
    args.sources = form == Form::kLanding ? recvs[r].sources : nullptr;
    if (form != Form::kRead) {
      right = x.executor_.Run(LandRowsLaunches({&args, &args, 1}, shape)) &&
              *args.report == kNoReport && right;
    }
    const reference::ScatterResult want =
        reference::Scatter(x.problem_, r, rows, weights, row_bytes, capacity);
    right = right && std::equal(want.rows.begin(), want.rows.end(), args.recv_rows) &&
            std::equal(want.weights.begin(), want.weights.end(), args.recv_weights);
  }
  return right;
}

bool GathersAreRight(Exchange& x, DataType type, std::uint64_t row_bytes, std::int64_t capacity,
                     const DeviceShape& shape, Random& random) {
  std::vector<reference::Bytes> rows;
  std::vector<std::vector<float>> weights;
  auto* sources = x.New<cuda::GatherSource>(x.spec_.num_ranks);
  for (int r = 0; r < x.problem_.num_ranks; ++r) {
    rows.push_back(RandomRows(random, static_cast<std::size_t>(capacity) * row_bytes, type));
    weights.push_back(RandomFloats(random, capacity));
    sources[r] = {x.Copy(rows[r]), x.Copy(weights[r]),
                  LiveSlots(TotalRecv(x.spec_, x.counts_, r), capacity)};
  }
  bool right = true;
  for (int r = 0; r < x.problem_.num_ranks; ++r) {
    const RoutingPlanView& view = x.views_[r];
    auto& args = *x.New<cuda::GatherReduceArgs>(1);
    args = {};
    args.table = view.table;
    args.sources = sources;
    args.out = x.New<std::uint8_t>(view.num_tokens * static_cast<std::int64_t>(row_bytes));
    args.out_weights = x.New<float>(view.num_tokens * x.spec_.top_k);
    args.num_tokens = view.num_tokens;
    args.row_bytes = row_bytes;
    args.top_k = x.spec_.top_k;
    args.num_ranks = x.spec_.num_ranks;
    const LaunchList list = r % 2 == 0 ? GatherReduceLaunches(args, type, nullptr, shape)
                                       : GatherReduceLaunches({&args, &args, 1}, type, shape);
    right = (list.size() == 0 || x.executor_.Run(list)) && right;
    const reference::GatherResult want =
        reference::Gather(x.problem_, r, rows, weights, row_bytes, type);
    right = right && std::equal(want.rows.begin(), want.rows.end(), args.out) &&
            std::equal(want.weights.begin(), want.weights.end(), args.out_weights);
  }
  return right;
}

// All 65536 patterns of a 16-bit type, each added to a random one: every conversion of the device.
bool ConversionsAreRight(Executor& executor, DataType type, std::uint64_t seed) {
  Random random(seed);
  reference::Problem problem;
  problem.top_k = 2;
  problem.max_tokens = 1;
  problem.owner = {0};
  problem.topk = {{0, 0}};
  Exchange x(executor, problem);
  const std::uint64_t row_bytes = 65536 * 2;
  reference::Bytes rows = RandomBytes(random, 2 * row_bytes);
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(rows.data() + i * 2, &bits, 2);
  }
  auto* sources = x.New<cuda::GatherSource>(1);
  sources[0] = {x.Copy(rows), nullptr, 2};
  cuda::GatherReduceArgs args;
  args.table = x.views_[0].table;
  args.sources = sources;
  args.out = x.New<std::uint8_t>(row_bytes);
  args.num_tokens = 1;
  args.row_bytes = row_bytes;
  args.top_k = 2;
  args.num_ranks = 1;
  if (!executor.Run(GatherReduceLaunches(args, type, nullptr, executor.Shape()))) return false;
  const reference::GatherResult want =
      reference::Gather(problem, 0, {rows}, {{0.0f, 0.0f}}, row_bytes, type);
  return std::equal(want.rows.begin(), want.rows.end(), args.out);
}

class Tally {
 public:
  void Add(const std::string& what, bool passed) {
    (passed ? passed_ : failed_) += 1;
    if (!passed && first_failure_.empty()) first_failure_ = what;
  }
  int Print(const Executor& executor) const {
    std::printf(
        "{\"name\": \"kernel_tests\", \"device\": \"%s\", \"passed\": %d, \"failed\": %d, "
        "\"first_failure\": \"%s\"}\n",
        executor.Name().c_str(), passed_, failed_, first_failure_.c_str());
    return failed_ == 0 && passed_ > 0 ? kPassed : kFailed;
  }

 private:
  int passed_ = 0;
  int failed_ = 0;
  std::string first_failure_;
};

void RunSeed(Executor& executor, std::uint64_t seed, Tally& tally) {
  constexpr std::uint64_t kRowBytes[] = {16,   32, 2048, 14336, 16400, 4,  516, 2,
                                         1030, 1,  33,   96,    8208,  20, 14,  7};
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16};
  Random random(seed);
  const reference::Problem problem = RandomProblem(random, kAllRoutings[seed % 5]);
  const std::string name = Describe(problem, seed);
  DeviceShape shape = executor.Shape();
  shape.max_num_sms = seed % 2 == 0 ? 0 : 3;
  shape.min_bulk_row_bytes = seed % 3 == 0 ? 0 : INT64_MAX;
  const std::uint64_t row_bytes = kRowBytes[seed % std::size(kRowBytes)];
  const DataType type = kTypes[seed % 3];
  Exchange x(executor, problem);
  const std::int64_t capacity = seed % 4 == 0 ? x.Demand() / 2 : x.Demand() + 3;
  tally.Add("plan " + name, PlansAreRight(x, shape));
  for (const auto& [form, what] : {std::pair{Form::kDirect, "direct "},
                                   {Form::kLanding, "landing "},
                                   {Form::kRead, "read "}}) {
    tally.Add(what + name, ScattersAreRight(x, row_bytes, capacity, form, shape, random));
  }
  const std::uint64_t gather_bytes =
      (row_bytes + DataTypeBytes(type) - 1) / DataTypeBytes(type) * DataTypeBytes(type);
  tally.Add("gather " + name, GathersAreRight(x, type, gather_bytes, capacity, shape, random));
  executor.FreeAll();
}

int Main(int argc, char** argv) {
  std::string image_path;
  bool on_host = false;
  std::uint64_t seeds = 200;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--host") on_host = true;
    if (argument == "--image" && i + 1 < argc) image_path = argv[++i];
    if (argument == "--seeds" && i + 1 < argc) seeds = std::strtoull(argv[++i], nullptr, 10);
  }
  Driver driver;
  Device device;
  std::vector<std::max_align_t> image;
  std::unique_ptr<Executor> executor;
  if (on_host) {
    executor = MakeHostExecutor();
  } else {
    OpenOrExit(&driver, &device);
    image = ReadImage(image_path);
    executor = MakeGpuExecutor(driver, device, image.data());
  }
  Tally tally;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) RunSeed(*executor, seed, tally);
  for (const DataType type : {DataType::kBfloat16, DataType::kFloat16}) {
    tally.Add("conversions", ConversionsAreRight(*executor, type, 1));
    executor->FreeAll();
  }
  return tally.Print(*executor);
}

}  // namespace
}  // namespace epd::gpu

int main(int argc, char** argv) { return epd::gpu::Main(argc, argv); }
