// ViewRoutingPlan, some at a time: for whoever has others' rows to move in between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_error.h"
#include "kernels/routing_plan.h"

namespace epd {

class PlanReader {
 public:
  // What `args` point to stays as it is until the plan was viewed.
  explicit PlanReader(const ViewPlanArgs& args);

  // Sums up about `bytes` more, 8 at least. False: there is no more, and View says what the plan is.
  bool Some(std::size_t bytes);
  // As ViewRoutingPlan. Looks at all of the counts, however many there are.
  KernelError View(RoutingPlanView* view) const;

 private:
  ViewPlanArgs args_;
  KernelError error_;
  std::size_t used_bytes_ = 0;    // Of a plan whose header may be one's.
  std::size_t summed_bytes_ = 0;  // A multiple of 8, but for the last ones.
  std::uint64_t sum_ = 0;
};

}  // namespace epd
