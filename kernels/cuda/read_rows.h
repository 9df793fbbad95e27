// Scatter by reading: each rank stages its rows once, and each receiver fills every slot of its own receive buffer out
// of the stages of all ranks.
//
//   StageRows   a rank's rows and weights, and of its plan what says which of them go where, into its own stage
//   ReadRows    one slot at a time: the row that the plan has there, or zeros in padding and tail
//   CloseRows   zeros everywhere where a stage was not what it must be, or the rank's session has ended meanwhile
//
// A slot is written once, by the warp that has found whose row it is, so no stage, whatever stands in it, can reach another
// source's slots or keep old bytes in one. Stages lie in peers' memory and anybody of the tenant may change them: each word is
// read once, checked, and used.
#pragma once

#include <cstdint>

#include "kernels/cuda/fan_out.h"
#include "kernels/cuda/recv_index.h"
#include "kernels/cuda/report.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// A rank's stage of a scatter, as it writes it and as its peers see it.
struct ScatterStage {
  PlanHeader* header = nullptr;   // of the plan; first of the stage
  PlanExpert* experts = nullptr;  // [E]
  std::int32_t* order = nullptr;  // [T * K]
  float* weights = nullptr;       // [T, K]
  std::uint8_t* rows = nullptr;   // [T, row_bytes], aligned to 16 bytes
};

struct StageRowsArgs {
  const std::uint8_t* plan = nullptr;  // handle_mem
  RoutingSpec spec;
  std::int64_t num_tokens = 0;         // T of the call, and of its plan
  const std::uint8_t* rows = nullptr;  // [T, row_bytes]
  const float* weights = nullptr;      // [T, K], or null
  std::uint64_t row_bytes = 0;
  ScatterStage stage;
  std::int32_t num_parts = 1;
  Gate gate;

  EPD_HOST_DEVICE std::int64_t NumRowTasks() const { return num_tokens * num_parts; }
};

// A block's worth of words that are no rows: header and experts, order, weights, one after the other.
template <typename Mover>
struct StageRows {
  using Args = StageRowsArgs;
  using Shared = typename Mover::Shared;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 1;
  static constexpr std::int64_t kWordsPerTask = 8 * kWarpThreads;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.NumRowTasks() + CeilDiv(NumWords(args), kWordsPerTask),
                   kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    if (!args.gate.Open()) return;
    const std::int64_t task = thread.Task();
    if (task >= args.NumRowTasks()) return CopyWords(args, task - args.NumRowTasks(), thread);
    const RowPart part = PartOf(task, args.num_parts);
    const std::uint64_t offset = static_cast<std::uint64_t>(part.row) * args.row_bytes;
    RowTargets to = {};
    to.row[0] = args.stage.rows + offset;
    Mover::Copy({args.rows + offset, to, args.row_bytes, part}, thread, shared);
  }

 private:
  EPD_HOST_DEVICE static std::int64_t NumHeadWords(const Args& args) {
    return static_cast<std::int64_t>(PlanCountsOffset(args.spec.num_experts) / 4);
  }
  EPD_HOST_DEVICE static std::int64_t NumRoutes(const Args& args) {
    return args.num_tokens * args.spec.top_k;
  }
  EPD_HOST_DEVICE static std::int64_t NumWords(const Args& args) {
    return NumHeadWords(args) + NumRoutes(args) * (args.weights != nullptr ? 2 : 1);
  }

  EPD_HOST_DEVICE static void CopyWords(const Args& args, std::int64_t task,
                                        const ThreadPosition& thread) {
    const auto* head = reinterpret_cast<const std::uint32_t*>(args.plan);
    const auto* order = reinterpret_cast<const std::int32_t*>(
        args.plan + PlanOrderOffset(args.spec, args.num_tokens));
    const std::int64_t num_head = NumHeadWords(args);
    const std::int64_t num_routes = NumRoutes(args);
    const std::int64_t begin = task * kWordsPerTask;
    for (std::int64_t i = begin + thread.InWarp(); i < begin + kWordsPerTask; i += kWarpThreads) {
      if (i >= NumWords(args)) return;
      if (i < num_head) {
        // Header and experts are gapless, in the plan and in the stage.
        reinterpret_cast<std::uint32_t*>(args.stage.header)[i] = head[i];
      } else if (i < num_head + num_routes) {
        args.stage.order[i - num_head] = order[i - num_head];
      } else {
        args.stage.weights[i - num_head - num_routes] = args.weights[i - num_head - num_routes];
      }
    }
  }
};

struct ReadRowsArgs {
  RecvIndex index;                        // filled (IndexLandings)
  const std::uint8_t* plan = nullptr;     // the own one
  const ScatterStage* sources = nullptr;  // [R]
  std::uint64_t row_bytes = 0;
  std::uint8_t* recv_rows = nullptr;  // [C, row_bytes]
  float* recv_weights = nullptr;      // [C], or null
  std::int64_t capacity = 0;          // C
  std::int32_t num_parts = 1;
  ReportWord* report = nullptr;
  Gate gate;
};

template <typename Mover>
struct ReadRows {
  using Args = ReadRowsArgs;
  using Shared = typename Mover::Shared;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(args.capacity * args.num_parts, kThreads / kWarpThreads);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    const RowPart part = PartOf(thread.Task(), args.num_parts);
    const std::int64_t slot = part.row;
    if (slot >= args.capacity) return;
    const RecvPlace place = args.gate.Open() ? args.index.PlaceOf(slot) : RecvPlace{};
    const std::int64_t route = place.source < 0 ? -1 : FindRoute(args, place);
    const bool weighs = part.part == 0 && thread.InWarp() == 0 && args.recv_weights != nullptr;
    std::uint8_t* const out = args.recv_rows + static_cast<std::uint64_t>(slot) * args.row_bytes;
    if (route < 0) {
      if (weighs) args.recv_weights[slot] = 0.0f;
      return VectorMover<Mover::kWidth>::Zero(out, args.row_bytes, part, thread);
    }
    const ScatterStage& from = args.sources[place.source];
    if (weighs) args.recv_weights[slot] = from.weights[route];
    const auto token = static_cast<std::uint64_t>(route / args.index.spec.top_k);
    RowTargets to = {};
    to.row[0] = out;
    Mover::Copy({from.rows + token * args.row_bytes, to, args.row_bytes, part}, thread, shared);
  }

 private:
  // Which route of its source the row in `place` is, t * K + k; -1 where the stage does not say so of this plan.
  EPD_HOST_DEVICE static std::int64_t FindRoute(const Args& args, const RecvPlace& place) {
    const ScatterStage& from = args.sources[place.source];
    const auto& own = *reinterpret_cast<const PlanHeader*>(args.plan);
    const auto& header = *static_cast<const volatile PlanHeader*>(from.header);
    const std::int64_t num_tokens = header.num_tokens;
    KernelFault fault = KernelFault::kNone;
    if (header.magic != kPlanMagic) {
      fault = KernelFault::kStageMagic;
    } else if (header.plan_id != own.plan_id || header.epoch != own.epoch) {
      fault = KernelFault::kStagePlanId;
    } else if (header.rank != static_cast<std::uint32_t>(place.source)) {
      fault = KernelFault::kStageRank;
    } else if (num_tokens > args.index.spec.max_tokens) {
      fault = KernelFault::kStageNumRows;
    }
    const std::int64_t num_routes = num_tokens * args.index.spec.top_k;
    if (fault == KernelFault::kNone) {
      const std::int32_t first =
          static_cast<const volatile PlanExpert*>(from.experts)[place.expert].first_route;
      const std::int64_t at = first + place.index;
      if (first >= 0 && at < num_routes) {
        const std::int32_t route = static_cast<const volatile std::int32_t*>(from.order)[at];
        if (route >= 0 && route < num_routes) return route;
      }
      fault = KernelFault::kStageRouteRow;
    }
    Note(args.report, fault, place.source);
    return -1;
  }
};

struct CloseRowsArgs {
  const std::uint32_t* ended = nullptr;  // host memory: not 0 once the session is over; or null
  const ReportWord* report = nullptr;    // or null
  ReportWord* report_out = nullptr;      // host memory that the slot's request lies in; or null
  std::uint8_t* rows = nullptr;          // [num_rows, row_bytes]
  float* weights = nullptr;              // [num_weights], or null
  std::int64_t num_rows = 0;
  std::int64_t num_weights = 0;
  std::uint64_t row_bytes = 0;
};

// Behind all reads of stages. In the good case a block reads two words.
template <typename Mover>
struct CloseRows {
  using Args = CloseRowsArgs;
  static constexpr std::int32_t kThreads = Mover::kThreads;
  static constexpr int kPhases = 2;
  static constexpr std::int64_t kRowsPerUnit = 512;
  struct Shared {
    std::uint32_t is_over;
  };

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    const std::int64_t most = args.num_rows > args.num_weights ? args.num_rows : args.num_weights;
    return most == 0 ? 1 : CeilDiv(most, kRowsPerUnit);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    if constexpr (kPhase == 0) {
      if (thread.index != 0) return;
      const ReportWord report = args.report != nullptr ? *args.report : kNoReport;
      const bool ended =
          args.ended != nullptr && *static_cast<const volatile std::uint32_t*>(args.ended) != 0;
      shared.is_over = report != kNoReport || ended ? 1 : 0;
      if (thread.unit == 0 && args.report_out != nullptr) *args.report_out = report;
    } else if (shared.is_over != 0) {
      Clear(args, thread);
    }
  }

 private:
  EPD_HOST_DEVICE static void Clear(const Args& args, const ThreadPosition& thread) {
    const std::int64_t begin = thread.unit * kRowsPerUnit;
    const std::int64_t end = begin + kRowsPerUnit;
    for (std::int64_t row = begin + thread.Warp(); row < end && row < args.num_rows;
         row += thread.NumWarps()) {
      Mover::Zero(args.rows + static_cast<std::uint64_t>(row) * args.row_bytes, args.row_bytes,
                  {row, 0, 1}, thread);
    }
    if (args.weights == nullptr) return;
    for (std::int64_t i = begin + thread.index; i < end && i < args.num_weights;
         i += thread.num_threads) {
      args.weights[i] = 0.0f;
    }
  }
};

}  // namespace epd::cuda
