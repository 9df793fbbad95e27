// From a rank's routing plan to what NCCL EP is told, and what it must tell in return. Pure.
//
// The library ends its process on bad input and traps on overflow, so everything that it is given is
// checked here before: a plan is taken apart route by route, what does not fit a receive buffer is left out
// by epd's own rule, and a token that names an expert twice, which the library would count once, is
// refused. What is left has the same slots in the library as in the plan: expert by expert, and inside of a
// zone by (source rank, token).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/routing_plan.h"

namespace epd::nccl_ep {

class EpRouting {
 public:
  // Copies what it needs out of a plan in host memory that nobody else writes. `plan.spec` has no table of owners, which would
  // have to outlive it.
  //   INVALID_ARGUMENT  a plan of something else, or a token with one expert twice (which one)
  //   ABORTED           of another epoch
  //   DATA_LOSS         damaged
  static absl::StatusOr<EpRouting> FromPlan(const ViewPlanArgs& plan);

  const PlanHeader& header() const { return header_; }            // Of the plan that it comes from.
  const std::vector<int32_t>& counts() const { return counts_; }  // [R, E]
  int64_t num_tokens() const { return num_tokens_; }

  // Whether nothing needs to be dropped where receivers have these capacities [R].
  //   RESOURCE_EXHAUSTED  a rank's rows and padding do not fit
  absl::Status Fit(const std::vector<uint64_t>& recv_capacity) const;
  // The experts [T, K] of the routes that land below their receiver's capacity [R]; -1: no route.
  std::vector<int32_t> Land(const std::vector<uint64_t>& recv_capacity) const;
  // The lengths of this rank's zones [local experts] that then follow, padding included.
  std::vector<int32_t> ZoneSlots(uint64_t recv_capacity) const;

 private:
  explicit EpRouting(const RoutingPlanView& view);
  absl::Status TakeRoutes(const RoutingPlanView& view);

  RoutingSpec spec_;
  PlanHeader header_;
  int32_t rank_ = 0;
  int64_t num_tokens_ = 0;
  std::vector<int32_t> counts_;   // [R, E]
  std::vector<int32_t> experts_;  // [T, K]; -1: none. Slots follow: by expert, in this order.
};

}  // namespace epd::nccl_ep
