// Rows between workers in one message: a gather reads the slots that a worker's ranks have filled, and these lie in the
// owner's stage expert by expert, with other workers' slots between them.
//
//   PackRows     the owner's half: what each other worker filled, one behind the other, a message per worker
//   FindPacked   the reader's half: routes to a rank whose rows came in a message lead to their place there
//
// The host gives the runs, out of counts that it has read; whatever stands in the plans, nothing is read or written outside
// of what the host has named.
#pragma once

#include <cstdint>

#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// Slots of a stage that go one behind the other into a message.
struct PackRun {
  std::int64_t row = 0;          // number of the first one, among all that the stage's owner packs
  std::int64_t slot = 0;         // ... in the stage
  std::uint64_t rows_at = 0;     // where it goes, from the start of the messages
  std::uint64_t weights_at = 0;  // ... and its weight
};

// The same as who receives it sees it.
struct PackedRun {
  std::int64_t slot = 0;  // the first one, at its owner
  std::int64_t num_rows = 0;
  std::int64_t row = 0;  // ... in the message
};

// The last of `num_runs` (at least 1) that begins at or before `key`; the first if none does.
template <typename Run>
EPD_HOST_DEVICE std::int64_t LastRunAt(const Run* runs, std::int64_t num_runs,
                                       std::int64_t Run::*begin, std::int64_t key) {
  std::int64_t low = 0;
  std::int64_t high = num_runs;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (runs[middle].*begin <= key) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

struct PackRowsArgs {
  const PackRun* runs = nullptr;  // [num_runs], by row
  std::int64_t num_runs = 0;
  std::int64_t num_rows = 0;           // of all runs
  const std::uint8_t* rows = nullptr;  // the stage's, aligned to 16 bytes
  const float* weights = nullptr;      // the stage's, or null
  std::uint8_t* messages = nullptr;    // aligned to 64 bytes
  std::uint64_t row_bytes = 0;
  std::int32_t num_parts = 1;
};

template <typename Mover>
struct PackRows {
  using Args = PackRowsArgs;
  using Shared = typename Mover::Shared;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.num_rows * args.num_parts, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.Task(), args.num_parts);
    if (part.row >= args.num_rows) return;
    const PackRun run = args.runs[LastRunAt(args.runs, args.num_runs, &PackRun::row, part.row)];
    const std::int64_t i = part.row - run.row;
    RowTargets to = {};
    to.row[0] = args.messages + run.rows_at + static_cast<std::uint64_t>(i) * args.row_bytes;
    const std::uint8_t* from =
        args.rows + static_cast<std::uint64_t>(run.slot + i) * args.row_bytes;
    Mover::Copy({from, to, args.row_bytes, part}, thread, shared);
    if (args.weights == nullptr || part.part != 0 || thread.InWarp() != 0) return;
    reinterpret_cast<float*>(args.messages + run.weights_at)[i] = args.weights[run.slot + i];
  }
};

struct FindPacked {
  // A rank's rows as they came.
  struct Source {
    std::int64_t first_run = 0;
    std::int64_t num_runs = kWhereTheyLie;
  };
  // Of a rank of this worker: its rows came in no message.
  static constexpr std::int64_t kWhereTheyLie = -1;
  // No message has so many rows: a slot that came in none, since it is behind its owner's capacity.
  static constexpr std::int32_t kNotSent = 0x7fffffff;

  struct Args {
    PlanRoute* table = nullptr;  // [T, K], this worker's copy
    std::int64_t num_routes = 0;
    std::int32_t num_ranks = 0;
    const Source* sources = nullptr;  // [R]
    const PackedRun* runs = nullptr;  // by source and slot
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.num_routes, kThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t flat = thread.unit * thread.num_threads + thread.index;
    if (flat >= args.num_routes) return;
    PlanRoute& route = args.table[flat];
    // CheckTable says so of those that lead nowhere.
    if (route.dst_rank < 0 || route.dst_rank >= args.num_ranks || route.slot < 0) return;
    const Source source = args.sources[route.dst_rank];
    if (source.num_runs == kWhereTheyLie) return;
    route.slot = PlaceOf(args.runs + source.first_run, source.num_runs, route.slot);
  }

 private:
  EPD_HOST_DEVICE static std::int32_t PlaceOf(const PackedRun* runs, std::int64_t num_runs,
                                              std::int64_t slot) {
    if (num_runs == 0) return kNotSent;
    const PackedRun run = runs[LastRunAt(runs, num_runs, &PackedRun::slot, slot)];
    const std::int64_t i = slot - run.slot;
    return i >= 0 && i < run.num_rows ? static_cast<std::int32_t>(run.row + i) : kNotSent;
  }
};

}  // namespace epd::cuda
