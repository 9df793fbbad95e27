// Checksums of plans on the device: the last steps of a build, and the check of a plan before use.
#pragma once

#include <cstdint>

#include "kernels/cuda/build_plan.h"
#include "kernels/cuda/plan_layout.h"
#include "kernels/cuda/report.h"
#include "kernels/plan_checksum.h"

namespace epd::cuda {

// Used bytes as the plan's own header has them, or 0 if they cannot be: never beyond the memory.
EPD_HOST_DEVICE inline std::size_t ClaimedUsedBytes(const std::uint8_t* plan,
                                                    const RoutingSpec& spec) {
  const auto* header = reinterpret_cast<const PlanHeader*>(plan);
  const std::int64_t num_tokens = header->num_tokens;
  const std::int64_t num_routes = header->num_routes;
  if (num_tokens > spec.max_tokens || num_routes > num_tokens * spec.top_k) return 0;
  return PlanUsedBytes(spec, num_tokens, num_routes);
}

// Copies a plan, or the first part of it, kWordsPerUnit per block: few, since each word may come from another device.
struct CopyPlan {
  struct Args {
    const std::uint8_t* from = nullptr;  // aligned to 8 bytes
    std::uint8_t* to = nullptr;          // the same
    std::uint64_t bytes = 0;             // a multiple of 8
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;
  static constexpr std::int64_t kWordsPerUnit = 1024;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) {
    return CeilDiv(static_cast<std::int64_t>(args.bytes / 8), kWordsPerUnit);
  }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const auto* from = reinterpret_cast<const std::uint64_t*>(args.from);
    auto* to = reinterpret_cast<std::uint64_t*>(args.to);
    const auto words = static_cast<std::int64_t>(args.bytes / 8);
    const std::int64_t begin = thread.unit * kWordsPerUnit;
    const std::int64_t end = begin + kWordsPerUnit < words ? begin + kWordsPerUnit : words;
    for (std::int64_t i = begin + thread.index; i < end; i += thread.num_threads) to[i] = from[i];
  }
};

// Adds up the words of a plan, kPlanWordsPerUnit per block.
struct SumPlan {
  struct Args {
    const std::uint8_t* plan = nullptr;
    RoutingSpec spec;
    std::uint64_t* sums = nullptr;  // out: [PlanSumUnits(spec)]
    Gate gate;
  };
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 2;
  struct Shared {
    std::uint64_t sum[kThreads];
  };

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return PlanSumUnits(args.spec); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared& shared) {
    if constexpr (kPhase == 0) {
      shared.sum[thread.index] = args.gate.Open() ? SumPart(args, thread) : 0;
    } else if (thread.index == 0) {
      std::uint64_t sum = 0;
      for (std::int32_t t = 0; t < kThreads; ++t) sum += shared.sum[t];
      args.sums[thread.unit] = sum;
    }
  }

 private:
  EPD_HOST_DEVICE static std::uint64_t SumPart(const Args& args, const ThreadPosition& thread) {
    const std::size_t used = ClaimedUsedBytes(args.plan, args.spec);
    const std::int64_t begin = thread.unit * kPlanWordsPerUnit;
    const std::size_t unit_end = static_cast<std::size_t>(begin + kPlanWordsPerUnit) * 8;
    // A unit is a whole number of words, so only the last one sees the plan's own end.
    return SumPlanWords(args.plan, used < unit_end ? used : unit_end, begin + thread.index,
                        thread.num_threads);
  }
};

EPD_HOST_DEVICE inline std::uint64_t AddPlanSums(const std::uint64_t* sums, const RoutingSpec& spec,
                                                 std::size_t used) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < PlanSumUnits(spec); ++i) sum += sums[i];
  return SealPlanSum(sum, used);
}

// Writes the checksum, and zeros from the used part to the end; on a fault zeros in every output.
struct FinishPlan {
  using Args = BuildPlanOnDeviceArgs;
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args& args) { return PlanSumUnits(args.spec); }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    const bool good = args.Open();
    const std::size_t used = good ? ClaimedUsedBytes(args.plan, args.spec) : 0;
    ZeroWords(args, thread, used);
    if (thread.unit != 0) return;
    if (good && thread.index == 0) {
      reinterpret_cast<PlanHeader*>(args.plan)->checksum =
          AddPlanSums(args.scratch.sums, args.spec, used);
    }
    if (!good) ZeroOutputs(args, thread);
  }

 private:
  // Used parts end at multiples of 4 bytes.
  EPD_HOST_DEVICE static void ZeroWords(const Args& args, const ThreadPosition& thread,
                                        std::size_t used) {
    auto* words = reinterpret_cast<std::uint32_t*>(args.plan);
    const auto total = static_cast<std::int64_t>(RoutingPlanBytes(args.spec) / 4);
    const std::int64_t begin = thread.unit * kPlanWordsPerUnit * 2;
    std::int64_t end = begin + kPlanWordsPerUnit * 2;
    if (end > total) end = total;
    for (std::int64_t i = begin + thread.index; i < end; i += thread.num_threads) {
      if (i >= static_cast<std::int64_t>(used / 4)) words[i] = 0;
    }
  }

  EPD_HOST_DEVICE static void ZeroOutputs(const Args& args, const ThreadPosition& thread) {
    const std::int32_t locals = NumLocalExperts(args.spec, args.rank);
    for (std::int32_t i = thread.index; i < locals; i += thread.num_threads)
      args.token_counts[i] = 0;
    if (thread.index == 0) *args.total_recv = 0;
  }
};

// Is this a sound plan of this group, epoch, rank and prepare? One block, behind SumPlan.
struct VerifyPlan {
  struct Args {
    const std::uint8_t* plan = nullptr;
    RoutingSpec spec;
    std::int32_t rank = 0;
    PlanIds ids;  // plan_id 0 accepts any prepare
    // In place of ids, where they are written before the launch runs.
    const PlanIds* ids_at = nullptr;
    std::int64_t num_tokens = 0;  // T of the call
    const std::uint64_t* sums = nullptr;
    ReportWord* report = nullptr;
    const std::uint32_t* status = nullptr;
  };
  using Shared = NoShared;
  static constexpr std::int32_t kThreads = 256;
  static constexpr int kPhases = 1;

  EPD_HOST_DEVICE static std::int64_t Units(const Args&) { return 1; }

  template <int kPhase>
  EPD_HOST_DEVICE static void Run(const Args& args, const ThreadPosition& thread, Shared&) {
    if (!Gate{args.status, nullptr}.Open()) return;
    if (thread.index == 0) {
      const KernelFault fault = Check(args);
      if (fault != KernelFault::kNone) Note(args.report, fault, 0);
    }
    const auto* counts =
        reinterpret_cast<const std::int32_t*>(args.plan + PlanCountsOffset(args.spec.num_experts));
    NoteBadCounts(args.spec, counts, thread, args.report);
  }

 private:
  struct Field {
    KernelFault fault;
    std::uint64_t got;
    std::uint64_t expected;
  };

  // In the order of ViewRoutingPlan: is it a plan, is it whole, is it the caller's.
  EPD_HOST_DEVICE static KernelFault Check(const Args& args) {
    const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(args.plan);
    const Field sound[] = {{KernelFault::kPlanMagic, header.magic, kPlanMagic},
                           {KernelFault::kPlanVersion, header.version, kPlanVersion},
                           {KernelFault::kPlanHeaderBytes, header.header_bytes, sizeof(header)}};
    for (const Field& field : sound) {
      if (field.got != field.expected) return field.fault;
    }
    const RoutingSpec& spec = args.spec;
    const std::size_t used = ClaimedUsedBytes(args.plan, spec);
    if (used == 0) return KernelFault::kPlanNumTokens;
    if (AddPlanSums(args.sums, spec, used) != header.checksum) return KernelFault::kPlanChecksum;
    const PlanIds ids = args.ids_at != nullptr ? *args.ids_at : args.ids;
    const PlanHeader want =
        MakePlanHeader(spec, args.rank, ids, args.num_tokens, header.num_routes);
    const Field own[] = {{KernelFault::kPlanBytes, header.total_bytes, want.total_bytes},
                         {KernelFault::kPlanGroup, header.group_id, want.group_id},
                         {KernelFault::kPlanEpoch, header.epoch, want.epoch},
                         {KernelFault::kPlanRank, header.rank, want.rank},
                         {KernelFault::kPlanNumRanks, header.num_ranks, want.num_ranks},
                         {KernelFault::kPlanNumExperts, header.num_experts, want.num_experts},
                         {KernelFault::kPlanTopK, header.top_k, want.top_k},
                         {KernelFault::kPlanAlignment, header.alignment, want.alignment},
                         {KernelFault::kPlanMaxTokens, header.max_tokens, want.max_tokens},
                         {KernelFault::kNumTokens, want.num_tokens, header.num_tokens}};
    for (const Field& field : own) {
      if (field.got != field.expected) return field.fault;
    }
    if (ids.plan_id != 0 && header.plan_id != ids.plan_id) return KernelFault::kPlanId;
    return KernelFault::kNone;
  }
};

}  // namespace epd::cuda
