// ViewRoutingPlan, some at a time: for whoever has others' rows to move in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/count_reader.h"
#include "kernels/kernel_error.h"
#include "kernels/routing_plan.h"

namespace epd {

class PlanReader {
 public:
  // What `args` point to stays as it is until the plan was viewed.
  explicit PlanReader(const ViewPlanArgs& args);

  // Looks at about `bytes` more: 8, or the counts of a rank, at least. False: there is no more, and View says what the plan is.
  bool Some(std::size_t bytes);
  // As ViewRoutingPlan.
  KernelError View(RoutingPlanView* view) const;

 private:
  KernelError CheckSum() const;

  ViewPlanArgs args_;
  KernelError error_;
  std::size_t used_bytes_ = 0;    // Of a plan whose header may be one's.
  std::size_t summed_bytes_ = 0;  // A multiple of 8, but for the last ones.
  std::uint64_t sum_ = 0;
  std::optional<CountReader> counts_;  // Of an undamaged plan of the caller's.
};

}  // namespace epd
