// What the kernels of an operation found, out of device memory into host memory that they see: one launch, whatever
// the number of ranks, behind all others.
#pragma once

#include <cstdint>

#include "kernels/cuda/report.h"
#include "kernels/cuda/thread_position.h"
#include "kernels/host_device.h"
#include "kernels/routing_plan.h"

namespace epd::cuda {

struct TakeResults {
  struct Args {
    const ReportWord* reports = nullptr;  // [R]
    const std::uint8_t* const* plans =
        nullptr;  // [R] copies of the ranks' plans; null: of another worker
    std::int32_t num_ranks = 0;
    std::int32_t num_experts = 0;
    ReportWord* reports_out = nullptr;   // [R]
    PlanHeader* headers_out = nullptr;   // [R]
    std::int32_t* counts_out = nullptr;  // [R, R, E]
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return args.num_ranks; }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const std::int64_t rank = thread.unit;
    if (thread.index == 0) args.reports_out[rank] = args.reports[rank];
    const std::uint8_t* const plan = args.plans[rank];
    if (plan == nullptr) return;
    if (thread.index == 0) {
      args.headers_out[rank] = *reinterpret_cast<const PlanHeader*>(plan);
    }
    const auto* counts =
        reinterpret_cast<const std::int32_t*>(plan + PlanCountsOffset(args.num_experts));
    const std::int64_t num_counts = std::int64_t{args.num_ranks} * args.num_experts;
    for (std::int64_t i = thread.index; i < num_counts; i += thread.num_threads) {
      args.counts_out[rank * num_counts + i] = counts[i];
    }
  }
};

}  // namespace epd::cuda
