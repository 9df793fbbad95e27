#include "client/c/rows_operation.h"
#include "kernels/scatter_rows.h"

namespace epd::client {

Status ScatterOperation::CheckPointers() const {
  if (args_.tokens == nullptr && args_.num_tokens != 0) {
    return MakeStatus(Code::kInvalidArgument, "tokens is NULL");
  }
  if (args_.recv_tokens == nullptr && args_.recv_capacity != 0) {
    return MakeStatus(Code::kInvalidArgument, "recv_tokens is NULL");
  }
  const bool in = args_.topk_weights != nullptr || (has_weights_ && args_.num_tokens == 0);
  const bool out = args_.recv_topk_weights != nullptr || (has_weights_ && args_.recv_capacity == 0);
  if (in == has_weights_ && out == has_weights_) return {};
  return MakeStatus(Code::kInvalidArgument,
                    "topk_weights and recv_topk_weights must%s be NULL for %s",
                    has_weights_ ? " not" : "", has_weights_ ? "dispatch" : "combine backward");
}

Status ScatterOperation::Plan(const Formation& formation, shm::SlotRequest* request) {
  request->kind = kind_;
  if (Status s = CheckPointers(); !s.ok()) return s;
  if (Status s = PlanRows(formation, RowsOf(args_), request); !s.ok()) return s;
  // dispatch's overflow is the worker's to say: it knows every rank's demand.
  if (!has_weights_ && !drop_ && request->announce.demand > args_.recv_capacity) {
    return MakeStatus(Code::kInvalidArgument,
                      "recv_capacity: got %llu slots, the plan's rows need %llu",
                      static_cast<unsigned long long>(args_.recv_capacity),
                      static_cast<unsigned long long>(request->announce.demand));
  }
  return {};
}

Status ScatterOperation::Stage(const Admitted& admitted) {
  std::byte* to = nullptr;
  if (Status s = StagePlanCopy(admitted, &to); !s.ok()) return s;
  if (on_device_) {
    StageTensor(to, args_.tokens, args_.num_tokens, args_.topk_weights, region_.num_weights);
    return {};
  }
  StageScatterArgs stage;
  stage.plan = &plan_;
  stage.rows = args_.tokens;
  stage.weights = args_.topk_weights;
  stage.num_tokens = static_cast<int64_t>(args_.num_tokens);
  stage.row_bytes = row_bytes_;
  stage.stage = to;
  stage.stage_bytes = region_.bare_stage_bytes();
  stage.skip_own_rows = !admitted.worker_executor;
  return FromKernel(StageScatter(stage));
}

Status ScatterOperation::Pull(const Admitted& admitted) {
  PullScatterArgs pull;
  pull.plan = &plan_;
  pull.sources = admitted.stages.data();
  pull.row_bytes = row_bytes_;
  pull.capacity = static_cast<int64_t>(args_.recv_capacity);
  pull.recv_rows = args_.recv_tokens;
  pull.recv_weights = args_.recv_topk_weights;
  pull.drop_on_overflow = drop_;
  pull.own_rows = args_.tokens;
  pull.own_weights = args_.topk_weights;
  return FromKernel(PullScatter(pull));
}

Status ScatterOperation::TakeOutput(const Admitted&, const std::byte* out) {
  CopyOutput(out, args_.recv_tokens, args_.recv_topk_weights);
  return {};
}

void ScatterOperation::ZeroOutputs() {
  Zero(args_.recv_tokens, args_.recv_capacity, args_.hidden * DtypeBytes(args_.dtype));
  Zero(args_.recv_topk_weights, args_.recv_capacity, 4);
}

}  // namespace epd::client
