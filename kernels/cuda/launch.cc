#include "kernels/cuda/launch.h"

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
void Add(LaunchList& list, const typename Step::Args& args, const DeviceShape& device) {
  list.Add<Step>(NameOf<Step>::kName, args, device);
}

// Adds the variant of a step whose words fit the rows.
template <template <typename> typename Step, typename Args>
void AddVector(LaunchList& list, const Args& args, const DeviceShape& device) {
  switch (RowWidth(args.row_bytes)) {
    case 16:
      return Add<Step<VectorMover<16>>>(list, args, device);
    case 4:
      return Add<Step<VectorMover<4>>>(list, args, device);
    case 2:
      return Add<Step<VectorMover<2>>>(list, args, device);
    default:
      return Add<Step<VectorMover<1>>>(list, args, device);
  }
}

// The same, or by bulk copies.
template <template <typename> typename Step, typename Args>
void AddMover(LaunchList& list, const Args& args, const DeviceShape& device) {
  if (MovesInBulk(args.row_bytes, device)) return Add<Step<BulkMover>>(list, args, device);
  AddVector<Step>(list, args, device);
}

template <DataType kType>
void AddHalfGather(LaunchList& list, const GatherReduceArgs& args, const DeviceShape& device) {
  switch (RowWidth(args.row_bytes)) {
    case 16:
      return Add<GatherReduce<kType, 16>>(list, args, device);
    case 4:
      return Add<GatherReduce<kType, 4>>(list, args, device);
    default:
      return Add<GatherReduce<kType, 2>>(list, args, device);
  }
}

void AddGather(LaunchList& list, const GatherReduceArgs& args, DataType type,
               const DeviceShape& device) {
  switch (type) {
    case DataType::kBfloat16:
      return AddHalfGather<DataType::kBfloat16>(list, args, device);
    case DataType::kFloat16:
      return AddHalfGather<DataType::kFloat16>(list, args, device);
    case DataType::kFloat32:
      break;
  }
  if (RowWidth(args.row_bytes) == 16) {
    return Add<GatherReduce<DataType::kFloat32, 16>>(list, args, device);
  }
  Add<GatherReduce<DataType::kFloat32, 4>>(list, args, device);
}

std::int32_t MoverThreads(std::uint64_t row_bytes, const DeviceShape& device) {
  return MovesInBulk(row_bytes, device) ? BulkMover::kThreads : VectorMover<16>::kThreads;
}

void AddCounts(LaunchList& list, const BuildPlanOnDeviceArgs& args, const DeviceShape& device) {
  Add<CountTiles<ExpertColumn>>(list, {args.experts, args.tiling, args.scratch.tiles}, device);
  Add<SumTiles>(list, {args.tiling, args.scratch.tiles, args.scratch.own_counts}, device);
}

}  // namespace

int NumKernels() { return static_cast<int>(std::size(kKernels)); }

const KernelShape& KernelAt(int i) { return kKernels[i]; }

std::uint32_t GridFor(std::int64_t units, std::int32_t threads, const DeviceShape& device) {
  // Blocks of 256 threads and fewer leave room for others on their SM.
  std::int64_t most = device.num_sms * (threads > 256 ? 1 : 1024 / std::int64_t{threads});
  if (device.max_num_sms > 0 && device.max_num_sms < most) most = device.max_num_sms;
  return static_cast<std::uint32_t>(units < most ? units : most);
}

int RowWidth(std::uint64_t row_bytes) {
  if (row_bytes % 16 == 0) return 16;
  if (row_bytes % 4 == 0) return 4;
  return row_bytes % 2 == 0 ? 2 : 1;
}

bool MovesInBulk(std::uint64_t row_bytes, const DeviceShape& device) {
  return device.compute_capability >= 90 && RowWidth(row_bytes) == 16 &&
         device.max_shared_bytes >= static_cast<std::int32_t>(sizeof(BulkShared)) &&
         static_cast<std::int64_t>(row_bytes) >= device.min_bulk_row_bytes;
}

std::int32_t PartsFor(std::int64_t num_rows, std::uint64_t row_bytes, std::int32_t threads,
                      const DeviceShape& device) {
  constexpr std::int64_t kRounds = 4;
  constexpr std::int64_t kMinWords = 128;
  if (num_rows == 0) return 1;
  const std::int64_t warps =
      std::int64_t{GridFor(INT64_MAX, threads, device)} * threads / kWarpThreads;
  const std::int64_t most =
      static_cast<std::int64_t>(row_bytes / static_cast<unsigned>(RowWidth(row_bytes))) / kMinWords;
  const std::int64_t wanted = CeilDiv(warps * kRounds, num_rows);
  if (wanted >= most) return static_cast<std::int32_t>(most > 1 ? most : 1);
  return static_cast<std::int32_t>(wanted);
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

LaunchList PushDirectLaunches(PushDirectArgs args, const DeviceShape& device) {
  LaunchList list;
  args.num_parts =
      PartsFor(args.num_tokens, args.row_bytes, MoverThreads(args.row_bytes, device), device);
  AddMover<PushDirect>(list, args, device);
  return list;
}

LaunchList CountDestinationsLaunches(const CountDestinationsArgs& args, const DeviceShape& device) {
  LaunchList list;
  Add<CountTiles<DestinationColumn>>(list, {args.routes, args.tiling, args.tiles}, device);
  Add<SumTiles>(list, {args.tiling, args.tiles, args.totals}, device);
  return list;
}

LaunchList PushLandingLaunches(PushLandingArgs args, const DeviceShape& device) {
  LaunchList list;
  args.num_parts = PartsFor(args.tiling.num_tokens, args.row_bytes,
                            MoverThreads(args.row_bytes, device), device);
  Add<CountTiles<DestinationColumn>>(list, {args.routes, args.tiling, args.tiles}, device);
  Add<SumTiles>(list, {args.tiling, args.tiles, args.num_landed}, device);
  Add<PlaceLandings>(list, args, device);
  Add<OpenLandings>(list, args, device);
  AddMover<PushLandings>(list, args, device);
  return list;
}

LaunchList LandRowsLaunches(LandRowsArgs args, const DeviceShape& device) {
  LaunchList list;
  args.num_parts =
      PartsFor(args.NumRowTasks(), args.row_bytes, MoverThreads(args.row_bytes, device), device);
  Add<IndexLandings>(list, args, device);
  if (args.sources != nullptr) {
    Add<MarkLandings>(list, args, device);
    Add<VerifyMarks>(list, args, device);
  }
  AddVector<ZeroPadding>(list, args, device);
  if (args.sources != nullptr && args.capacity > 0) AddMover<ExpandLandings>(list, args, device);
  return list;
}

LaunchList PackRowsLaunches(PackRowsArgs args, const DeviceShape& device) {
  LaunchList list;
  args.num_parts =
      PartsFor(args.num_rows, args.row_bytes, MoverThreads(args.row_bytes, device), device);
  AddMover<PackRows>(list, args, device);
  return list;
}

LaunchList FindPackedLaunches(const FindPacked::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<FindPacked>(list, args, device);
  return list;
}

LaunchList CheckTableLaunches(const CheckTable::Args& args, const DeviceShape& device) {
  LaunchList list;
  Add<CheckTable>(list, args, device);
  return list;
}

LaunchList GatherReduceLaunches(GatherReduceArgs args, DataType type, ReportWord* report,
                                const DeviceShape& device) {
  LaunchList list;
  args.num_parts = PartsFor(args.num_tokens, args.row_bytes, 384, device);
  args.gate.report = report;
  if (report != nullptr) {
    Add<CheckTable>(
        list, {args.table, args.num_tokens * args.top_k, args.num_ranks, report, args.gate.status},
        device);
  }
  AddGather(list, args, type, device);
  return list;
}

}  // namespace epd::cuda
