// prepare: exchanges the counts [E] of all ranks and writes the routing plan.
#pragma once

#include <vector>

#include "client/c/epd_client.h"
#include "client/c/operation.h"
#include "kernels/routing_plan.h"

namespace epd::client {

class PrepareOperation : public Operation {
 public:
  // Borrows the arguments.
  explicit PrepareOperation(const epd_prepare_args& args) : args_(args) {}

  Status Plan(const Formation& formation, shm::SlotRequest* request) override;
  Status Stage(const Admitted& admitted) override;
  Status Pull(const Admitted& admitted) override;
  Status TakeOutput(const Admitted& admitted, const std::byte* out) override;
  void ZeroOutputs() override;
  std::span<const int32_t> routes() const override { return counts_; }
  uint32_t padded_rows() const override;

 private:
  Status Build(const Admitted& admitted);

  const epd_prepare_args& args_;
  RoutingSpec routing_;
  TopkIndices topk_;
  PlanIds ids_;
  int32_t num_local_experts_ = 0;
  std::vector<int32_t> counts_;  // [E] own, then [R, E].
};

}  // namespace epd::client
