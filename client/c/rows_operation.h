// The four operations that move rows: two scatters and two gathers.
#pragma once

#include <vector>

#include "client/c/epd_client.h"
#include "client/c/operation.h"
#include "client/c/plan_argument.h"
#include "client/c/row_parts.h"
#include "kernels/region/region_layout.h"
#include "kernels/routing_plan.h"

namespace epd::client {

// What the four have in common: the plan, the region's layout, the outputs.
class RowsOperation : public Operation {
 protected:
  RowsOperation(shm::Kind kind, bool has_weights) : kind_(kind), has_weights_(has_weights) {}

  // Checks the arguments, and writes the fingerprint and the region's sizes into `request`.
  Status PlanRows(const Formation& formation, const RowsArguments& rows, shm::SlotRequest* request);
  // Puts the worker's copy of the plan, if it needs one, before the stage.
  Status StagePlanCopy(const Admitted& admitted, std::byte** stage) const;
  // A stage for kernels: rows, and their weights behind them; null: none.
  void StageTensor(std::byte* to, const void* rows, uint64_t num_rows, const float* weights,
                   uint64_t num_weights) const;
  // The weights alone.
  void StageWeights(std::byte* to, const float* weights, uint64_t num_weights) const;
  std::vector<int32_t> CountedExperts(const Formation& formation, uint32_t rank) const;
  void CopyOutput(const std::byte* out, void* rows, float* weights) const;
  void CopyOutWeights(const std::byte* out, float* weights) const;
  // Nothing where `to` is null or the size is not one: the arguments may be wrong.
  static void Zero(void* to, uint64_t count, uint64_t bytes_each);

  // epd_scatter_args or epd_gather_args: the same names for the same things.
  template <typename Args>
  static RowsArguments RowsOf(const Args& args) {
    return {args.rank,  args.handle_mem, args.handle_mem_bytes, args.top_k,        args.alignment,
            args.dtype, args.hidden,     args.num_tokens,       args.recv_capacity};
  }

  const shm::Kind kind_;
  const bool has_weights_;
  RoutingPlanView plan_;
  uint64_t row_bytes_ = 0;
  uint64_t num_live_ = 0;  // Filled slots of this rank's receive buffer.
  RegionLayout region_;
  std::vector<int32_t> counted_;  // Experts whose counts a gather between nodes stages.
  bool drop_ = false;
  bool on_device_ = false;  // Arenas are device memory (region_layout.h).
};

// dispatch, and the backward of combine.
class ScatterOperation : public RowsOperation {
 public:
  // Borrows the arguments. `kind` is kDispatch or kCombineBackward.
  ScatterOperation(shm::Kind kind, const epd_scatter_args& args)
      : RowsOperation(kind, kind == shm::Kind::kDispatch), args_(args) {}

  Status Plan(const Formation& formation, shm::SlotRequest* request) override;
  Status Stage(const Admitted& admitted) override;
  Status Pull(const Admitted& admitted) override;
  Status TakeOutput(const Admitted& admitted, const std::byte* out) override;
  void ZeroOutputs() override;

 private:
  Status CheckPointers() const;

  const epd_scatter_args& args_;
  std::vector<RowPart> parts_;  // After Plan.
};

// combine, and the backward of dispatch.
class GatherOperation : public RowsOperation {
 public:
  // Borrows the arguments. `kind` is kCombine or kDispatchBackward.
  GatherOperation(shm::Kind kind, const epd_gather_args& args)
      : RowsOperation(kind, kind == shm::Kind::kDispatchBackward), args_(args) {}

  Status Plan(const Formation& formation, shm::SlotRequest* request) override;
  Status Stage(const Admitted& admitted) override;
  Status Pull(const Admitted& admitted) override;
  Status TakeOutput(const Admitted& admitted, const std::byte* out) override;
  void ZeroOutputs() override;

 private:
  Status CheckPointers() const;

  const epd_gather_args& args_;
};

}  // namespace epd::client
