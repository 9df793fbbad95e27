// Long because each step has its launcher here; each is a few lines.
#include "kernels/cuda/launch.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/kernel_list.h"

namespace epd::cuda {
namespace {

// The name of a step in the image.
template <typename Step>
struct NameOf;
#define EPD_CUDA_NAME(name, ...)                \
  template <>                                   \
  struct NameOf<__VA_ARGS__> {                  \
    static constexpr const char* kName = #name; \
  };
EPD_CUDA_KERNELS(EPD_CUDA_NAME)
#undef EPD_CUDA_NAME

template <typename Step>
constexpr KernelShape ShapeOf() {
  return {NameOf<Step>::kName, Step::kThreads, SharedBytes<Step>(), sizeof(typename Step::Args)};
}

constexpr KernelShape kKernels[] = {
#define EPD_CUDA_SHAPE(name, ...) ShapeOf<__VA_ARGS__>(),
    EPD_CUDA_KERNELS(EPD_CUDA_SHAPE)
#undef EPD_CUDA_SHAPE
};

template <typename Step>
void Add(LaunchList& list, const typename Step::Args& args, const DeviceShape& device,
         std::int32_t threads = Step::kThreads) {
  list.Add<Step>(NameOf<Step>::kName, args, device, threads);
}

// Adds a step of several ranks.
template <typename Step, typename Args>
void AddEach(LaunchList& list, const ArgsOfEach<Args>& each, const DeviceShape& device,
             std::int32_t threads = Step::kThreads) {
  std::int64_t units = 0;
  for (std::int32_t i = 0; i < each.num; ++i) {
    units = std::max(units, Step::Units(each.host[i]));
  }
  Add<OfEach<Step>>(list, {each.device, each.num, units}, device, threads);
}

// Calls `add` for the variant of a step whose words fit the rows.
template <template <typename> typename Step, typename AddOne>
void WithVector(std::uint64_t row_bytes, const AddOne& add) {
  switch (RowWidth(row_bytes)) {
    case 16:
      return add.template operator()<Step<VectorMover<16>>>();
    case 4:
      return add.template operator()<Step<VectorMover<4>>>();
    case 2:
      return add.template operator()<Step<VectorMover<2>>>();
    default:
      return add.template operator()<Step<VectorMover<1>>>();
  }
}

// The same, or by bulk copies.
template <template <typename> typename Step, typename AddOne>
void WithMover(std::uint64_t row_bytes, const DeviceShape& device, const AddOne& add) {
  if (MovesInBulk(row_bytes, device)) return add.template operator()<Step<BulkMover>>();
  WithVector<Step>(row_bytes, add);
}

template <template <typename> typename Step, typename Args>
void AddMover(LaunchList& list, const Args& args, const DeviceShape& device) {
  WithMover<Step>(args.row_bytes, device, [&]<typename One>() { Add<One>(list, args, device); });
}

template <template <typename> typename Step, typename Args>
void AddEachMover(LaunchList& list, const ArgsOfEach<Args>& each, const DeviceShape& device) {
  if (each.num == 0) return;
  WithMover<Step>(each.host[0].row_bytes, device,
                  [&]<typename One>() { AddEach<One>(list, each, device); });
}

template <DataType kType, typename AddOne>
void WithHalfGather(std::uint64_t row_bytes, const AddOne& add) {
  switch (RowWidth(row_bytes)) {
    case 16:
      return add.template operator()<GatherReduce<kType, 16>>();
    case 4:
      return add.template operator()<GatherReduce<kType, 4>>();
    default:
      return add.template operator()<GatherReduce<kType, 2>>();
  }
}

template <typename AddOne>
void WithGather(std::uint64_t row_bytes, DataType type, const AddOne& add) {
  switch (type) {
    case DataType::kBfloat16:
      return WithHalfGather<DataType::kBfloat16>(row_bytes, add);
    case DataType::kFloat16:
      return WithHalfGather<DataType::kFloat16>(row_bytes, add);
    case DataType::kFloat32:
      break;
  }
  if (RowWidth(row_bytes) == 16) {
    return add.template operator()<GatherReduce<DataType::kFloat32, 16>>();
  }
  add.template operator()<GatherReduce<DataType::kFloat32, 4>>();
}

std::int32_t MoverThreads(std::uint64_t row_bytes, const DeviceShape& device) {
  return MovesInBulk(row_bytes, device) ? BulkMover::kThreads : VectorMover<16>::kThreads;
}

// What parts there are of `num_rows(args)` rows of each, which lie in one grid.
template <typename Args, typename NumRows>
void SetMoverParts(const ArgsOfEach<Args>& each, const DeviceShape& device,
                   const NumRows& num_rows) {
  if (each.num == 0) return;
  std::int64_t all = 0;
  for (std::int32_t i = 0; i < each.num; ++i) all += num_rows(each.host[i]);
  const std::uint64_t row_bytes = each.host[0].row_bytes;
  const std::int32_t parts = PartsFor(all, row_bytes, MoverThreads(row_bytes, device), device);
  for (std::int32_t i = 0; i < each.num; ++i) each.host[i].num_parts = parts;
}

template <typename Args>
std::int64_t NumTokens(const ArgsOfEach<Args>& each) {
  std::int64_t all = 0;
  for (std::int32_t i = 0; i < each.num; ++i) all += each.host[i].num_tokens;
  return all;
}

// Of a scatter. By bulk copies each warp of a block takes a part of its own.
BlockShape PushBlocks(std::int64_t num_tokens, std::uint64_t row_bytes, const DeviceShape& device) {
  if (!MovesInBulk(row_bytes, device)) return BlocksFor(num_tokens, row_bytes, device);
  const std::int32_t warp_parts = PartsFor(num_tokens, row_bytes, kBulkThreads, device);
  constexpr std::int32_t kWarps = kBulkThreads / kWarpThreads;
  return {kBulkThreads, static_cast<std::int32_t>(CeilDiv(warp_parts, kWarps))};
}

// Blocks of a grid.
std::int64_t MostBlocks(std::int32_t threads, const DeviceShape& device) {
  // Blocks of 256 threads and fewer leave room for others on their SM.
  const std::int64_t most = device.num_sms * (threads > 256 ? 1 : 1024 / std::int64_t{threads});
  return device.max_num_sms > 0 && device.max_num_sms < most ? device.max_num_sms : most;
}

void AddCounts(LaunchList& list, const BuildPlanOnDeviceArgs& args, const DeviceShape& device) {
  Add<CountTiles<ExpertColumn>>(list, {args.experts, args.tiling, args.scratch.tiles}, device);
  Add<SumTiles>(list, {args.tiling, args.scratch.tiles, args.scratch.own_counts}, device);
}

}  // namespace

int NumKernels() { return static_cast<int>(std::size(kKernels)); }

const KernelShape& KernelAt(int i) { return kKernels[i]; }

std::uint32_t GridFor(std::int64_t units, std::int32_t threads, const DeviceShape& device) {
  std::int64_t most = MostBlocks(threads, device);
  if (units <= most) return static_cast<std::uint32_t>(units);
  // One unit too many for one round of all blocks: two rounds of half as many end as soon, and all SMs have work in both.
  if (most > device.num_sms) most = CeilDiv(units, CeilDiv(units, most));
  return static_cast<std::uint32_t>(most);
}

int RowWidth(std::uint64_t row_bytes) {
  if (row_bytes % 16 == 0) return 16;
  if (row_bytes % 4 == 0) return 4;
  return row_bytes % 2 == 0 ? 2 : 1;
}

bool MovesInBulk(std::uint64_t row_bytes, const DeviceShape& device) {
  return device.compute_capability >= 90 && RowWidth(row_bytes) == 16 &&
         device.max_shared_bytes >=
             static_cast<std::int32_t>(SharedBytes<PushDirect<BulkMover>>()) &&
         static_cast<std::int64_t>(row_bytes) >= device.min_bulk_row_bytes;
}

std::int32_t PartsFor(std::int64_t num_rows, std::uint64_t row_bytes, std::int32_t threads,
                      const DeviceShape& device) {
  constexpr std::int64_t kRounds = 4;
  constexpr std::int64_t kMinWords = 128;
  if (num_rows == 0) return 1;
  const std::int64_t warps = MostBlocks(threads, device) * threads / kWarpThreads;
  const std::int64_t most =
      static_cast<std::int64_t>(row_bytes / static_cast<unsigned>(RowWidth(row_bytes))) / kMinWords;
  const std::int64_t wanted = CeilDiv(warps * kRounds, num_rows);
  if (wanted >= most) return static_cast<std::int32_t>(most > 1 ? most : 1);
  return static_cast<std::int32_t>(wanted);
}

BlockShape BlocksFor(std::int64_t num_tokens, std::uint64_t row_bytes, const DeviceShape& device) {
  constexpr std::int32_t kMostThreads = GatherReduce<DataType::kFloat32, 16>::kThreads;
  const std::int32_t most = device.max_num_sms > 0 ? kMostThreads : 256;
  const auto columns =
      static_cast<std::int64_t>(row_bytes / static_cast<unsigned>(RowWidth(row_bytes)));
  if (num_tokens == 0 || columns == 0) return {};
  const std::int64_t threads = MostBlocks(most, device) * most;
  const std::int64_t of_thread = CeilDiv(num_tokens * columns, threads);
  const std::int64_t parts = CeilDiv(columns, most * of_thread);
  const std::int64_t of_block = CeilDiv(columns, parts);
  const std::int64_t even = CeilDiv(of_block, CeilDiv(of_block, most));
  return {static_cast<std::int32_t>(CeilDiv(even, kWarpThreads) * kWarpThreads),
          static_cast<std::int32_t>(parts)};
}

LaunchList CountLaunches(const BuildPlanOnDeviceArgs& args, const DeviceShape& device) {
  LaunchList list;
  AddCounts(list, args, device);
  return list;
}

LaunchList BuildPlanLaunches(const BuildPlanOnDeviceArgs& args, const DeviceShape& device) {
  LaunchList list;
  AddCounts(list, args, device);
  Add<PlaceExperts>(list, args, device);
  Add<PlaceRoutes>(list, args, device);
  Add<SumPlan>(list, {args.plan, args.spec, args.scratch.sums, {args.status, args.report}}, device);
  Add<FinishPlan>(list, args, device);
  return list;
}

LaunchList VerifyPlanLaunches(const VerifyPlan::Args& args, std::uint64_t* sums,
                              const DeviceShape& device) {
  LaunchList list;
  Add<SumPlan>(list, {args.plan, args.spec, sums, {args.status, nullptr}}, device);
  VerifyPlan::Args verify = args;
  verify.sums = sums;
  Add<VerifyPlan>(list, verify, device);
  return list;
}

LaunchList VerifyPlansLaunches(const PlanBatch& batch, const DeviceShape& device) {
  LaunchList list;
  Add<OfEach<CopyPlan>>(
      list, {batch.copies, batch.num_copies, CopyPlan::Units({nullptr, nullptr, batch.bytes})},
      device);
  SumPlan::Args sums;
  sums.spec = batch.spec;
  Add<OfEach<SumPlan>>(list, {batch.sums, batch.num_whole, SumPlan::Units(sums)}, device);
  Add<OfEach<VerifyPlan>>(list, {batch.plans, batch.num_whole, 1}, device);
  return list;
}

LaunchList TellPlanLaunches(const TellPlan::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<TellPlan>(list, args, device);
  return list;
}

LaunchList TakeAnswerLaunches(const TakeAnswer::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<TakeAnswer>(list, args, device);
  return list;
}

LaunchList TakeResultsLaunches(const TakeResults::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<TakeResults>(list, args, device);
  return list;
}

LaunchList CopyRowsLaunches(const CopyRowsArgs& args, const DeviceShape& device) {
  LaunchList list;
  AddMover<CopyRows>(list, args, device);
  return list;
}

LaunchList GatherCountsLaunches(const ArgsOfEach<GatherCounts::Args>& each,
                                const DeviceShape& device) {
  LaunchList list;
  AddEach<GatherCounts>(list, each, device);
  return list;
}

LaunchList StageCountsLaunches(const StageCounts::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<StageCounts>(list, args, device);
  return list;
}

LaunchList ReadCountsLaunches(const ReadCounts::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<ReadCounts>(list, args, device);
  return list;
}

LaunchList PushDirectLaunches(const ArgsOfEach<PushDirectArgs>& each, const DeviceShape& device) {
  LaunchList list;
  if (each.num == 0) return list;
  const std::uint64_t row_bytes = each.host[0].row_bytes;
  const BlockShape shape = PushBlocks(NumTokens(each), row_bytes, device);
  for (std::int32_t i = 0; i < each.num; ++i) each.host[i].num_parts = shape.parts;
  WithMover<PushDirect>(row_bytes, device,
                        [&]<typename One>() { AddEach<One>(list, each, device, shape.threads); });
  return list;
}

LaunchList CountDestinationsLaunches(const CountDestinationsArgs& args, const DeviceShape& device) {
  LaunchList list;
  Add<CountTiles<DestinationColumn>>(list, {args.routes, args.tiling, args.tiles}, device);
  Add<SumTiles>(list, {args.tiling, args.tiles, args.totals}, device);
  return list;
}

LaunchList PushLandingLaunches(const ArgsOfEach<PushLandingArgs>& each, const DeviceShape& device) {
  LaunchList list;
  SetMoverParts(each, device, [](const PushLandingArgs& args) { return args.tiling.num_tokens; });
  AddEach<CountLandings>(list, each, device);
  AddEach<SumLandings>(list, each, device);
  AddEach<PlaceLandings>(list, each, device);
  AddEach<OpenLandings>(list, each, device);
  AddEachMover<PushLandings>(list, each, device);
  return list;
}

LaunchList LandRowsLaunches(const ArgsOfEach<LandRowsArgs>& each, const DeviceShape& device) {
  LaunchList list;
  if (each.num == 0) return list;
  SetMoverParts(each, device, [](const LandRowsArgs& args) { return args.NumRowTasks(); });
  const bool has_sources = each.host[0].sources != nullptr;
  AddEach<IndexLandings>(list, each, device);
  if (has_sources) {
    AddEach<MarkLandings>(list, each, device);
    AddEach<VerifyMarks>(list, each, device);
  }
  WithVector<ZeroPadding>(each.host[0].row_bytes,
                          [&]<typename One>() { AddEach<One>(list, each, device); });
  if (has_sources) AddEachMover<ExpandLandings>(list, each, device);
  return list;
}

LaunchList StageRowsLaunches(StageRowsArgs args, const DeviceShape& device) {
  LaunchList list;
  args.num_parts =
      PartsFor(args.num_tokens, args.row_bytes, MoverThreads(args.row_bytes, device), device);
  AddMover<StageRows>(list, args, device);
  return list;
}

LaunchList ReadRowsLaunches(ReadRowsArgs args, const DeviceShape& device) {
  LaunchList list;
  LandRowsArgs index;
  index.index = args.index;
  Add<IndexLandings>(list, index, device);
  args.num_parts =
      PartsFor(args.capacity, args.row_bytes, MoverThreads(args.row_bytes, device), device);
  AddMover<ReadRows>(list, args, device);
  return list;
}

LaunchList CloseRowsLaunches(const CloseRowsArgs& args, const DeviceShape& device) {
  LaunchList list;
  WithVector<CloseRows>(args.row_bytes, [&]<typename One>() { Add<One>(list, args, device); });
  return list;
}

LaunchList PackRowsLaunches(const ArgsOfEach<PackRowsArgs>& each, const DeviceShape& device) {
  LaunchList list;
  SetMoverParts(each, device, [](const PackRowsArgs& args) { return args.num_rows; });
  AddEachMover<PackRows>(list, each, device);
  return list;
}

LaunchList FindPackedLaunches(const ArgsOfEach<FindPacked::Args>& each, const DeviceShape& device) {
  LaunchList list;
  AddEach<FindPacked>(list, each, device);
  return list;
}

LaunchList CheckTableLaunches(const CheckTable::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<CheckTable>(list, args, device);
  return list;
}

LaunchList CheckTableLaunches(const ArgsOfEach<CheckTable::Args>& each, const DeviceShape& device) {
  LaunchList list;
  AddEach<CheckTable>(list, each, device);
  return list;
}

LaunchList GatherReduceLaunches(GatherReduceArgs args, DataType type, ReportWord* report,
                                const DeviceShape& device) {
  LaunchList list;
  const BlockShape shape = BlocksFor(args.num_tokens, args.row_bytes, device);
  args.num_parts = shape.parts;
  args.gate.report = report;
  if (report != nullptr) {
    Add<CheckTable>(
        list, {args.table, args.num_tokens * args.top_k, args.num_ranks, report, args.gate.status},
        device);
  }
  WithGather(args.row_bytes, type,
             [&]<typename One>() { Add<One>(list, args, device, shape.threads); });
  return list;
}

LaunchList GatherReduceLaunches(const ArgsOfEach<GatherReduceArgs>& each, DataType type,
                                const DeviceShape& device) {
  LaunchList list;
  if (each.num == 0) return list;
  const BlockShape shape = BlocksFor(NumTokens(each), each.host[0].row_bytes, device);
  for (std::int32_t i = 0; i < each.num; ++i) each.host[i].num_parts = shape.parts;
  WithGather(each.host[0].row_bytes, type,
             [&]<typename One>() { AddEach<One>(list, each, device, shape.threads); });
  return list;
}

}  // namespace epd::cuda
