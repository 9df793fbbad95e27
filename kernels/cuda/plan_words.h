// What an announce says of the plan that its call brings: two words, copied out before the slot is armed.
#pragma once

#include <cstdint>

#include "kernels/cuda/build_plan.h"
#include "kernels/cuda/thread_position.h"
#include "kernels/recv_layout.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

// Reads a plan in a client's memory, which may hold anything: nothing of it is believed here but the counts
// of one that says it is this call's. Whether the plan is sound VerifyPlan and the worker find out later.
struct TellPlan {
  struct Args {
    const std::uint8_t* plan = nullptr;
    RoutingSpec spec;
    std::int32_t rank = 0;
    std::uint64_t* plan_id = nullptr;  // out: as the plan has it
    std::uint64_t* demand =
        nullptr;  // out: total_recv of the rank; 0 if the plan is not this call's
    std::int64_t* live_rows = nullptr;  // out: the same, for kernels of the call; or null
  };
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 2;
  struct Shared {
    std::int64_t slots[kThreads];
  };

  EPD_HOST_DEVICE static std::int64_t Units(const Args&) { return 1; }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    if constexpr (kPhase == 0) {
      shared.slots[thread.index] = IsOfCall(args) ? SlotsOfThread(args, thread) : 0;
    } else if (thread.index == 0) {
      std::int64_t slots = 0;
      for (std::int32_t t = 0; t < kThreads; ++t) slots += shared.slots[t];
      *args.plan_id = reinterpret_cast<const PlanHeader*>(args.plan)->plan_id;
      *args.demand = static_cast<std::uint64_t>(slots);
      if (args.live_rows != nullptr) *args.live_rows = slots;
    }
  }

 private:
  EPD_HOST_DEVICE static bool IsOfCall(const Args& args) {
    const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(args.plan);
    const PlanHeader want = MakePlanHeader(args.spec, args.rank, PlanIds{}, 0, 0);
    return header.magic == want.magic && header.version == want.version &&
           header.rank == want.rank && header.num_ranks == want.num_ranks &&
           header.num_experts == want.num_experts && header.alignment == want.alignment;
  }

  EPD_HOST_DEVICE static std::int64_t SlotsOfThread(const Args& args,
                                                    const ThreadPosition& thread) {
    const auto* counts =
        reinterpret_cast<const std::int32_t*>(args.plan + PlanCountsOffset(args.spec.num_experts));
    const ExpertRange range = OwnedExpertRange(args.spec, args.rank);
    std::int64_t slots = 0;
    for (std::int32_t e = range.begin + thread.index; e < range.end; e += thread.num_threads) {
      if (ExpertOwner(args.spec, e) != args.rank) continue;
      const std::int64_t zone = ZoneSlots(args.spec, counts, e);
      if (zone > 0) slots += zone;
    }
    return slots;
  }
};

}  // namespace epd::cuda
