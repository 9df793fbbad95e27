// What this worker has read of plans: a plan serves a dispatch, a combine and their backwards, and the sizes of all four
// follow from the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

namespace epd::cuda {

// Whose plan it is. Tenants have arenas of their own, and number their prepares by themselves.
struct KnownPlan {
  const void* arenas = nullptr;
  uint64_t group_id = 0;
  uint64_t epoch = 0;
  uint64_t plan_id = 0;

  friend bool operator==(const KnownPlan&, const KnownPlan&) = default;
};

struct PlanSizes {
  std::vector<int32_t> counts;  // [R, E] routes, the same in the plans of all ranks.
  // [ranks of this worker, R] tokens of each that go to each rank, each token once; empty: no scatter has asked.
  std::vector<uint32_t> tokens_to = {};

  friend bool operator==(const PlanSizes&, const PlanSizes&) = default;
};

// Not thread-safe. What it says is a belief: whoever moves rows by it compares it with the plan in their midst.
template <typename Read>
class KnownPlans {
 public:
  explicit KnownPlans(size_t max_plans) : max_plans_(max_plans) {}

  void Keep(const KnownPlan& plan, Read read) {
    Forget(plan);
    if (plans_.size() >= max_plans_) plans_.pop_back();
    plans_.emplace_front(plan, std::move(read));
  }
  // Those used last stay longest. Null: they must be read.
  const Read* Find(const KnownPlan& plan) {
    for (auto it = plans_.begin(); it != plans_.end(); ++it) {
      if (it->first != plan) continue;
      plans_.splice(plans_.begin(), plans_, it);
      return &plans_.front().second;
    }
    return nullptr;
  }
  void Forget(const KnownPlan& plan) {
    std::erase_if(plans_, [&plan](const auto& entry) { return entry.first == plan; });
  }
  // Of arenas that go: others may be made at the same address.
  void ForgetArenas(const void* arenas) {
    std::erase_if(plans_, [arenas](const auto& entry) { return entry.first.arenas == arenas; });
  }

 private:
  const size_t max_plans_;
  std::list<std::pair<KnownPlan, Read>> plans_;  // Used last first.
};
using KnownCounts = KnownPlans<PlanSizes>;

}  // namespace epd::cuda
