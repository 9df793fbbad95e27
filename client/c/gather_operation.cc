#include <cstring>

#include "client/c/rows_operation.h"
#include "kernels/gather_reduce_rows.h"
#include "kernels/recv_layout.h"
#include "proto/epd/v1/row_dtype.h"

namespace epd::client {

Status GatherOperation::CheckPointers() const {
  if (args_.expert_rows == nullptr && args_.recv_capacity != 0) {
    return MakeStatus(Code::kInvalidArgument, "expert_rows is NULL");
  }
  if (args_.tokens == nullptr && args_.num_tokens != 0) {
    return MakeStatus(Code::kInvalidArgument, "tokens is NULL");
  }
  const bool in = args_.recv_topk_weights != nullptr || (has_weights_ && args_.recv_capacity == 0);
  const bool out = args_.topk_weights != nullptr || (has_weights_ && args_.num_tokens == 0);
  if (in == has_weights_ && out == has_weights_) return {};
  return MakeStatus(Code::kInvalidArgument,
                    "recv_topk_weights and topk_weights must%s be NULL for %s",
                    has_weights_ ? " not" : "", has_weights_ ? "dispatch backward" : "combine");
}

Status GatherOperation::Plan(const Formation& formation, shm::SlotRequest* request) {
  request->kind = kind_;
  if (Status s = CheckPointers(); !s.ok()) return s;
  if (!shm::IsReducible(static_cast<uint32_t>(args_.dtype))) {
    return MakeStatus(Code::kInvalidArgument,
                      "dtype: got %d, rows of which cannot be summed; expected EPD_DTYPE_FLOAT32, "
                      "EPD_DTYPE_BFLOAT16 or EPD_DTYPE_FLOAT16",
                      static_cast<int>(args_.dtype));
  }
  if (Status s = PlanRows(formation, RowsOf(args_), request); !s.ok()) return s;
  if (!drop_ && request->announce.demand > args_.recv_capacity) {
    return MakeStatus(Code::kInvalidArgument,
                      "recv_capacity: got %llu slots, the plan's rows fill %llu",
                      static_cast<unsigned long long>(args_.recv_capacity),
                      static_cast<unsigned long long>(request->announce.demand));
  }
  return {};
}

Status GatherOperation::Stage(const Admitted& admitted) {
  std::byte* to = nullptr;
  if (Status s = StagePlanCopy(admitted, &to); !s.ok()) return s;
  if (on_device_) {
    StageTensor(to, args_.expert_rows, num_live_, args_.recv_topk_weights, num_live_);
    return {};
  }
  StageGatherArgs stage;
  stage.plan = &plan_;
  stage.rows = args_.expert_rows;
  stage.weights = args_.recv_topk_weights;
  stage.capacity = static_cast<int64_t>(args_.recv_capacity);
  stage.row_bytes = row_bytes_;
  stage.stage = to;
  stage.stage_bytes = region_.bare_stage_bytes();
  stage.skip_own_rows = !admitted.worker_executor;
  std::byte* count = to + stage.stage_bytes;
  for (int32_t source = 0; source < plan_.spec.num_ranks && !counted_.empty(); ++source) {
    for (const int32_t expert : counted_) {
      const int32_t rows = epd::RowsOf(plan_.spec, plan_.counts, source, expert);
      std::memcpy(count, &rows, sizeof rows);
      count += sizeof rows;
    }
  }
  return FromKernel(StageGather(stage));
}

Status GatherOperation::Pull(const Admitted& admitted) {
  PullGatherArgs pull;
  pull.plan = &plan_;
  pull.sources = admitted.stages.data();
  pull.dtype = static_cast<DataType>(args_.dtype);  // The numbers are the same.
  pull.row_bytes = row_bytes_;
  pull.num_tokens = static_cast<int64_t>(args_.num_tokens);
  pull.out = args_.tokens;
  pull.out_weights = args_.topk_weights;
  pull.drop_on_overflow = drop_;
  pull.own_rows = args_.expert_rows;
  pull.own_weights = args_.recv_topk_weights;
  pull.own_capacity = static_cast<int64_t>(args_.recv_capacity);
  return FromKernel(PullGather(pull));
}

Status GatherOperation::TakeOutput(const Admitted&, const std::byte* out) {
  CopyOutput(out, args_.tokens, args_.topk_weights);
  return {};
}

void GatherOperation::ZeroOutputs() {
  Zero(args_.tokens, args_.num_tokens, args_.hidden * DtypeBytes(args_.dtype));
  Zero(args_.topk_weights, args_.num_tokens, uint64_t{args_.top_k} * 4);
}

}  // namespace epd::client
