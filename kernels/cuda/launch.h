// Which kernels an operation launches, with which grid: pure functions, no driver.
//
// Whoever executes a LaunchList takes its launches in order on one stream:
//
//   cuLaunchKernel(function named launch.function, launch.grid, 1, 1, launch.threads, 1, 1,
//                  launch.shared_bytes, stream, {launch.args}, nullptr)
//
// after cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES) for those whose shared_bytes exceed
// 48 KB. Lists hold constants only: pointers, sizes. They may be captured in a graph and replayed,
// with other bytes at the same addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/build_plan.h"
#include "kernels/cuda/copy_rows.h"
#include "kernels/cuda/gather_counts.h"
#include "kernels/cuda/gather_reduce.h"
#include "kernels/cuda/land_rows.h"
#include "kernels/cuda/of_each.h"
#include "kernels/cuda/pack_rows.h"
#include "kernels/cuda/plan_words.h"
#include "kernels/cuda/push_direct.h"
#include "kernels/cuda/push_landing.h"
#include "kernels/cuda/read_rows.h"
#include "kernels/cuda/seal_plan.h"
#include "kernels/cuda/take_results.h"
#include "kernels/cuda/use_words.h"

namespace epd::cuda {

// What a launch configuration depends on.
struct DeviceShape {
  std::int32_t num_sms = 1;
  std::int32_t compute_capability = 80;  // 10 * major + minor
  std::int32_t max_num_sms = 0;          // SMs that row movers may occupy; 0: all
  // Rows of at least so many bytes move by bulk copies where the device has them. Off until somebody
  // has measured where they win.
  std::int64_t min_bulk_row_bytes = INT64_MAX;
  // Of a block, when it is asked for: 227 KB with compute capability 9.0, 99 KB with 12.0.
  std::int32_t max_shared_bytes = 227 << 10;
};

inline constexpr std::size_t kMaxLaunchArgsBytes = 384;

struct Launch {
  const char* function = nullptr;  // a literal
  std::uint32_t grid = 0;
  std::uint32_t threads = 0;
  std::uint32_t shared_bytes = 0;  // dynamic
  std::uint32_t args_bytes = 0;
  alignas(16) std::uint8_t args[kMaxLaunchArgsBytes];  // the kernel's one parameter
};

template <typename Step>
constexpr std::uint32_t SharedBytes() {
  if (std::is_empty_v<typename Step::Shared>) return 0;
  return static_cast<std::uint32_t>(sizeof(typename Step::Shared));
}

class LaunchList {
 public:
  static constexpr int kCapacity = 8;

  int size() const { return size_; }
  const Launch* begin() const { return launches_; }
  const Launch* end() const { return launches_ + size_; }
  const Launch& operator[](int i) const { return launches_[i]; }

  // Adds a step; nothing where it has no work. `threads`: of a block, a multiple of kWarpThreads.
  template <typename Step>
  void Add(const char* function, const typename Step::Args& args, const DeviceShape& device,
           std::int32_t threads = Step::kThreads);

 private:
  Launch launches_[kCapacity];
  int size_ = 0;
};

// A kernel of the image, as its launches must be.
struct KernelShape {
  const char* name;
  std::uint32_t threads;
  std::uint32_t shared_bytes;  // dynamic
  std::uint32_t args_bytes;
};

// All kernels of the image, each once.
int NumKernels();
const KernelShape& KernelAt(int i);

// Blocks for `units` of work: one per SM for steps whose block fills an SM, more for small ones, all of which get as many units
// as the others or one less; and never more than max_num_sms, since so many blocks cannot occupy more SMs than that.
std::uint32_t GridFor(std::int64_t units, std::int32_t threads, const DeviceShape& device);

// 16, 4, 2 or 1: the widest word that row_bytes is made of.
int RowWidth(std::uint64_t row_bytes);

// Whether rows move by bulk copies.
bool MovesInBulk(std::uint64_t row_bytes, const DeviceShape& device);

// Parts to cut rows into, so that every warp of the grid has some work and several rounds of it,
// with at least 128 words to a part.
std::int32_t PartsFor(std::int64_t num_rows, std::uint64_t row_bytes, std::int32_t threads,
                      const DeviceShape& device);

// How rows of tokens are cut into blocks, where a block takes a token or a part of its rows.
struct BlockShape {
  std::int32_t threads = kWarpThreads;  // of a block
  std::int32_t parts = 1;               // of a token, a block each
};
// While there are threads for all columns of all tokens at a time, each thread gets one column. Rows of more tokens are cut into
// fewer parts, so that a block that has found its rows has more to do, and at last into none. Blocks have 256 threads at most, of
// which each takes as many columns as the others or one less; under a budget of SMs 1024, since then an SM has one block.
BlockShape BlocksFor(std::int64_t num_tokens, std::uint64_t row_bytes, const DeviceShape& device);

// prepare, first half: fills counts[E] = args.scratch.own_counts, what a rank announces. Uses
// experts, tiling, scratch.tiles and own_counts of `args`.
LaunchList CountLaunches(const BuildPlanOnDeviceArgs& args, const DeviceShape& device);

// prepare, second half: plan, token_counts and total_recv; zeros in all on a fault or a bad status.
LaunchList BuildPlanLaunches(const BuildPlanOnDeviceArgs& args, const DeviceShape& device);

// Before an operation uses a plan that lies in a client's memory. `sums` is scratch.
LaunchList VerifyPlanLaunches(const VerifyPlan::Args& args, std::uint64_t* sums,
                              const DeviceShape& device);

// The same of several plans, copied out of clients' memory first. What they are to do is on the device. All are of one
// `spec`. Those that are copied in part are not among the ones to verify.
struct PlanBatch {
  const CopyPlan::Args* copies = nullptr;  // [num_copies]
  std::int32_t num_copies = 0;
  std::uint64_t bytes = 0;                  // of the longest copy
  const SumPlan::Args* sums = nullptr;      // [num_whole]
  const VerifyPlan::Args* plans = nullptr;  // [num_whole]
  std::int32_t num_whole = 0;
  RoutingSpec spec;
};
LaunchList VerifyPlansLaunches(const PlanBatch& batch, const DeviceShape& device);

// What the announce of an operation says of its plan.
LaunchList TellPlanLaunches(const TellPlan::Args& args, const DeviceShape& device);

// What comes behind the wait for an answer.
LaunchList TakeAnswerLaunches(const TakeAnswer::Args& args, const DeviceShape& device);

// The last of an operation that a worker moves.
LaunchList TakeResultsLaunches(const TakeResults::Args& args, const DeviceShape& device);

// Copy-in. Writes nothing on a bad status.
LaunchList CopyRowsLaunches(const CopyRowsArgs& args, const DeviceShape& device);

// How many tokens of a rank go to each rank, each token once, as a push lands them: what sizes follow from before it.
struct CountDestinationsArgs {
  DestinationColumn routes;        // a table that nobody changes meanwhile
  Tiling tiling;                   // T, K, R
  std::int32_t* tiles = nullptr;   // scratch: [tiles, R]
  std::int32_t* totals = nullptr;  // out: [R], each from 0 to T
};
LaunchList CountDestinationsLaunches(const CountDestinationsArgs& args, const DeviceShape& device);

// What a step is to do for each of several ranks, in one launch; all rows have the same bytes. num_parts is set in `host`
// by the launchers, so what the device finds when the launches run is copied there behind them.
template <typename Args>
struct ArgsOfEach {
  Args* host = nullptr;          // [num]
  const Args* device = nullptr;  // [num] the same, on the device
  std::int32_t num = 0;
};

// Between the halves of a prepare: all ranks' counts to all ranks.
LaunchList GatherCountsLaunches(const ArgsOfEach<GatherCounts::Args>& each,
                                const DeviceShape& device);
// The same where each rank moves its own.
LaunchList StageCountsLaunches(const StageCounts::Args& args, const DeviceShape& device);
LaunchList ReadCountsLaunches(const ReadCounts::Args& args, const DeviceShape& device);

// Scatter. num_parts of all these is set here.
LaunchList PushDirectLaunches(const ArgsOfEach<PushDirectArgs>& each, const DeviceShape& device);
LaunchList PushLandingLaunches(const ArgsOfEach<PushLandingArgs>& each, const DeviceShape& device);
// All have sources, or none.
LaunchList LandRowsLaunches(const ArgsOfEach<LandRowsArgs>& each, const DeviceShape& device);

// Scatter by reading, before its publish and behind it. num_parts is set here; args.index is filled by the second, which
// takes its scratch.
LaunchList StageRowsLaunches(StageRowsArgs args, const DeviceShape& device);
LaunchList ReadRowsLaunches(ReadRowsArgs args, const DeviceShape& device);
// Behind whatever reads stages.
LaunchList CloseRowsLaunches(const CloseRowsArgs& args, const DeviceShape& device);

// Gather between workers, before and after the rows go. num_parts is set here.
LaunchList PackRowsLaunches(const ArgsOfEach<PackRowsArgs>& each, const DeviceShape& device);
LaunchList FindPackedLaunches(const ArgsOfEach<FindPacked::Args>& each, const DeviceShape& device);

// Notes routes of a table that lead nowhere: for a gather that is launched later, without a report.
LaunchList CheckTableLaunches(const CheckTable::Args& args, const DeviceShape& device);
LaunchList CheckTableLaunches(const ArgsOfEach<CheckTable::Args>& each, const DeviceShape& device);

// Gather and reduce. With a report in args.gate the table is checked first.
LaunchList GatherReduceLaunches(GatherReduceArgs args, DataType type, ReportWord* report,
                                const DeviceShape& device);
// Tables are checked by launches of their own.
LaunchList GatherReduceLaunches(const ArgsOfEach<GatherReduceArgs>& each, DataType type,
                                const DeviceShape& device);

template <typename Step>
void LaunchList::Add(const char* function, const typename Step::Args& args,
                     const DeviceShape& device, std::int32_t threads) {
  static_assert(sizeof(args) <= kMaxLaunchArgsBytes);
  static_assert(std::is_trivially_copyable_v<typename Step::Args>);
  const std::int64_t units = Step::Units(args);
  if (units == 0) return;
  Launch& launch = launches_[size_++];
  launch.function = function;
  launch.grid = GridFor(units, threads, device);
  launch.threads = static_cast<std::uint32_t>(threads);
  launch.shared_bytes = SharedBytes<Step>();
  launch.args_bytes = sizeof(args);
  std::memcpy(launch.args, &args, sizeof(args));
}

}  // namespace epd::cuda
