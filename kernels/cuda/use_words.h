// What one use of a call site in a stream has learnt, in device memory: the kernels behind a wait ask for it at each row
// (Gate in report.h), and an op slot is host memory, a microsecond away.
#pragma once

#include <cstdint>

#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// A use that begins finds those of the use before, and reads none before it has written it.
struct UseWords {
  std::uint32_t announced =
      0;  // `done` of the slot of its announce; by TakeAnswer, as the next two.
  std::uint32_t published = 0;
  PlanIds ids;                 // Of the plan that the call must bring.
  std::int64_t live_rows = 0;  // total_recv of the call's plan; by TellPlan.
};

// Behind a wait: the answer, out of the op slot. Nobody changes a slot between its answer and its next arm.
struct TakeAnswer {
  struct Args {
    const std::uint32_t* done = nullptr;
    std::uint32_t* answer = nullptr;  // out
    const PlanIds* ids = nullptr;     // or null
    PlanIds* ids_out = nullptr;       // out, where `ids` is there
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = kWarpThreads;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args&) { return 1; }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    if (thread.index != 0) return;
    *args.answer = *static_cast<const volatile std::uint32_t*>(args.done);
    if (args.ids == nullptr) return;
    const auto* ids = static_cast<const volatile PlanIds*>(args.ids);
    *args.ids_out = {ids->group_id, ids->epoch, ids->plan_id};
  }
};

}  // namespace epd::cuda
