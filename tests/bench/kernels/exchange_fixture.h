// Plans, stages and tensors of one exchange of R ranks, for benchmarks in one process.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/gather_reduce_rows.h"
#include "kernels/routing_plan.h"
#include "kernels/scatter_rows.h"

namespace epd {

// Anonymous pages, touched once.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    Map();
    std::memset(memory_, 1, bytes);
  }
  ~Pages() { munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(memory_); }
  std::size_t size() const { return bytes_; }
  // Maps them anew: the next touch faults, as in a fresh XLA output.
  void Renew() {
    munmap(memory_, bytes_);
    Map();
  }

 private:
  void Map() {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) std::abort();
  }

  void* memory_ = nullptr;
  std::size_t bytes_;
};

struct ExchangeSize {
  std::int64_t num_tokens;
  std::int64_t hidden;  // elements, 2 bytes each
  std::int32_t top_k;
  std::int32_t num_ranks;
};

// Uniform routing over 64 experts, distinct per token; C = 1.25 T K, or the demand if it is more.
class ExchangeFixture {
 public:
  explicit ExchangeFixture(const ExchangeSize& size) : size_(size) {
    spec_.num_ranks = size.num_ranks;
    spec_.num_experts = 64;
    spec_.top_k = size.top_k;
    spec_.max_tokens = size.num_tokens;
    capacity_ = size.num_tokens * size.top_k * 5 / 4;
    MakeTopk();
    MakePlans();
    for (int r = 0; r < size.num_ranks; ++r) {  // small sizes are unlucky now and then
      capacity_ = std::max(capacity_, TotalRecv(spec_, counts_.data(), r));
    }
  }

  std::int64_t Capacity() const { return capacity_; }
  std::uint64_t RowBytes() const { return static_cast<std::uint64_t>(size_.hidden) * 2; }
  const RoutingPlanView& View(int rank) const { return views_[rank]; }
  KernelError BuildPlan(int rank) {
    return BuildRoutingPlan({spec_,
                             rank,
                             {1, 1, 1},
                             {topk_[rank].data(), IndexType::kInt32, size_.num_tokens},
                             counts_.data(),
                             plans_[rank].data(),
                             plans_[rank].size() * 8,
                             token_counts_,
                             &total_recv_});
  }
  KernelError ViewPlan(int rank) {
    return ViewRoutingPlan({plans_[rank].data(), plans_[rank].size() * 8, spec_, rank, {1, 1, 1}},
                           &views_[rank]);
  }
  // Bytes of live rows that one rank receives.
  std::int64_t PayloadBytes(int rank) const {
    return TotalRecv(spec_, counts_.data(), rank) * static_cast<std::int64_t>(RowBytes());
  }

 private:
  void MakeTopk() {
    std::mt19937 random(1);
    counts_.resize(spec_.num_ranks * spec_.num_experts);
    topk_.resize(spec_.num_ranks);
    for (int r = 0; r < spec_.num_ranks; ++r) {
      for (std::int64_t t = 0; t < size_.num_tokens; ++t) {
        const auto first = static_cast<std::int32_t>(random() % 64);
        for (int k = 0; k < size_.top_k; ++k) topk_[r].push_back((first + k * 7) % 64);
      }
      Check(CountRoutes(spec_, {topk_[r].data(), IndexType::kInt32, size_.num_tokens},
                        counts_.data() + r * spec_.num_experts));
    }
  }

  void MakePlans() {
    views_.resize(spec_.num_ranks);
    for (int r = 0; r < spec_.num_ranks; ++r) {
      plans_.emplace_back(RoutingPlanBytes(spec_) / 8);
      Check(BuildPlan(r));
      Check(ViewPlan(r));
    }
  }

  static void Check(const KernelError& error) {
    if (!error.ok()) std::abort();
  }

  ExchangeSize size_;
  RoutingSpec spec_;
  std::int64_t capacity_ = 0;
  std::int32_t token_counts_[64] = {};
  std::int32_t total_recv_ = 0;
  std::vector<std::int32_t> counts_;
  std::vector<std::vector<std::int32_t>> topk_;
  std::vector<std::vector<std::uint64_t>> plans_;
  std::vector<RoutingPlanView> views_;
};

}  // namespace epd
