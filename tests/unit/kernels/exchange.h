// All ranks of one exchange in this process: plans, stages and the calls in between.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gather_reduce_rows.h"
#include "kernels/kernel_error.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"
#include "tests/unit/kernels/problems.h"
#include "tests/unit/kernels/reference.h"

namespace epd {

inline std::string Text(const KernelError& error) {
  char buffer[512];
  FormatKernelError(error, buffer, sizeof(buffer));
  return std::string(CodeName(error.code)) + ": " + buffer;
}

#define EXPECT_OK(expression)                        \
  do {                                               \
    const ::epd::KernelError error_ = (expression);  \
    EXPECT_TRUE(error_.ok()) << ::epd::Text(error_); \
  } while (false)

// Memory of exactly `bytes`, aligned to 64 and filled with 0xee, so that the address sanitizer sees
// the first byte beyond and tests see what was not written.
class Region {
 public:
  explicit Region(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes > 0 ? bytes : 1) != 0) std::abort();
    memory_.reset(static_cast<std::uint8_t*>(memory));
    std::memset(memory, 0xee, bytes);
  }
  std::uint8_t* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }
  StageRef Ref() const { return {memory_.get(), bytes_}; }
  reference::Bytes Copy() const { return {data(), data() + bytes_}; }

 private:
  struct Free {
    void operator()(std::uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::size_t bytes_;
};

inline std::vector<StageRef> Refs(const std::vector<Region>& regions) {
  std::vector<StageRef> refs;
  for (const Region& region : regions) refs.push_back(region.Ref());
  return refs;
}

inline constexpr PlanIds kTestIds = {0x1234567890abcdef, 7, 42};

// Plans of all ranks of a problem.
class Plans {
 public:
  explicit Plans(const reference::Problem& problem, IndexType type = IndexType::kInt64)
      : problem_(problem), type_(type), counts_(problem.num_ranks * problem.num_experts) {
    for (int r = 0; r < problem.num_ranks; ++r) {
      narrow_.emplace_back(problem.topk[r].begin(), problem.topk[r].end());
      EXPECT_OK(CountRoutes(problem.Spec(), Topk(r), counts_.data() + r * problem.num_experts));
    }
    views_.resize(problem.num_ranks);
    for (int r = 0; r < problem.num_ranks; ++r) {
      memory_.emplace_back(RoutingPlanBytes(problem.Spec()));
      token_counts_.emplace_back(NumLocalExperts(problem.Spec(), r));
      total_recv_.push_back(-1);
      EXPECT_OK(BuildRoutingPlan(BuildArgs(r)));
      EXPECT_OK(ViewRoutingPlan(ViewArgs(r), &views_[r]));
    }
  }

  TopkIndices Topk(int rank) const {
    const void* data = type_ == IndexType::kInt64
                           ? static_cast<const void*>(problem_.topk[rank].data())
                           : static_cast<const void*>(narrow_[rank].data());
    return {data, type_, problem_.NumTokens(rank)};
  }
  BuildPlanArgs BuildArgs(int rank) {
    return {problem_.Spec(),
            rank,
            kTestIds,
            Topk(rank),
            counts_.data(),
            memory_[rank].data(),
            memory_[rank].size(),
            token_counts_[rank].data(),
            &total_recv_[rank]};
  }
  ViewPlanArgs ViewArgs(int rank) const {
    return {memory_[rank].data(), memory_[rank].size(), problem_.Spec(), rank, kTestIds};
  }
  const RoutingPlanView& View(int rank) const { return views_[rank]; }
  const Region& Memory(int rank) const { return memory_[rank]; }
  std::vector<std::int32_t>& Counts() { return counts_; }
  const std::vector<std::int32_t>& TokenCounts(int rank) const { return token_counts_[rank]; }
  std::int32_t TotalRecv(int rank) const { return total_recv_[rank]; }

 private:
  const reference::Problem& problem_;
  IndexType type_;
  std::vector<std::int32_t> counts_;
  std::vector<std::vector<std::int32_t>> narrow_;
  std::vector<Region> memory_;
  std::vector<std::vector<std::int32_t>> token_counts_;
  std::vector<std::int32_t> total_recv_;
  std::vector<RoutingPlanView> views_;
};

// Stages of all ranks for a scatter; `weights` empty for none.
inline std::vector<Region> StageScatters(const reference::Problem& problem, const Plans& plans,
                                         const std::vector<reference::Bytes>& rows,
                                         const std::vector<std::vector<float>>& weights,
                                         std::uint64_t row_bytes, bool skip_own_rows = false) {
  std::vector<Region> stages;
  for (int r = 0; r < problem.num_ranks; ++r) {
    const RoutingPlanView& view = plans.View(r);
    stages.emplace_back(
        ScatterStageBytes({view.num_tokens, view.num_routes, problem.num_ranks, row_bytes}));
    const float* own = weights.empty() ? nullptr : weights[r].data();
    EXPECT_OK(StageScatter({&view, rows[r].data(), own, view.num_tokens, row_bytes,
                            stages[r].data(), stages[r].size(), skip_own_rows}));
  }
  return stages;
}

// Stages of all ranks for a gather; weights[r] has C_r entries even where they are not staged.
inline std::vector<Region> StageGathers(const reference::Problem& problem, const Plans& plans,
                                        const std::vector<reference::Bytes>& rows,
                                        const std::vector<std::vector<float>>& weights,
                                        std::uint64_t row_bytes, bool with_weights,
                                        bool skip_own_rows = false) {
  std::vector<Region> stages;
  for (int r = 0; r < problem.num_ranks; ++r) {
    const auto capacity = static_cast<std::int64_t>(weights[r].size());
    const std::int64_t live = LiveSlots(plans.TotalRecv(r), capacity);
    stages.emplace_back(GatherStageBytes({live, row_bytes, with_weights}));
    const float* own = with_weights ? weights[r].data() : nullptr;
    EXPECT_OK(StageGather({&plans.View(r), rows[r].data(), own, capacity, row_bytes,
                           stages[r].data(), stages[r].size(), skip_own_rows}));
  }
  return stages;
}

}  // namespace epd
