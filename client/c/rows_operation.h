// The four operations that move rows: two scatters and two gathers.
#pragma once

#include "client/c/epd_client.h"
#include "client/c/operation.h"
#include "client/c/plan_argument.h"
#include "kernels/routing_plan.h"

namespace epd::client {

// dispatch, and the backward of combine.
class ScatterOperation : public Operation {
 public:
  // Borrows the arguments. `kind` is kDispatch or kCombineBackward.
  ScatterOperation(shm::Kind kind, const epd_scatter_args& args) : kind_(kind), args_(args) {}

  Status Plan(const Formation& formation, shm::SlotRequest* request) override;
  Status Stage(const Admitted& admitted) override;
  Status Pull(const Admitted& admitted) override;
  Status TakeOutput(const Admitted& admitted, const std::byte* out) override;
  void ZeroOutputs() override;

 private:
  Status CheckPointers() const;

  const shm::Kind kind_;
  const epd_scatter_args& args_;
  RoutingPlanView plan_;
  uint64_t row_bytes_ = 0;
  uint64_t plan_bytes_ = 0;  // Staged for the worker executor.
  uint64_t stage_bytes_ = 0;
  bool drop_ = false;
};

// combine, and the backward of dispatch.
class GatherOperation : public Operation {
 public:
  // Borrows the arguments. `kind` is kCombine or kDispatchBackward.
  GatherOperation(shm::Kind kind, const epd_gather_args& args) : kind_(kind), args_(args) {}

  Status Plan(const Formation& formation, shm::SlotRequest* request) override;
  Status Stage(const Admitted& admitted) override;
  Status Pull(const Admitted& admitted) override;
  Status TakeOutput(const Admitted& admitted, const std::byte* out) override;
  void ZeroOutputs() override;

 private:
  Status CheckPointers() const;

  const shm::Kind kind_;
  const epd_gather_args& args_;
  RoutingPlanView plan_;
  uint64_t row_bytes_ = 0;
  uint64_t plan_bytes_ = 0;
  uint64_t stage_bytes_ = 0;
  bool drop_ = false;
};

}  // namespace epd::client
