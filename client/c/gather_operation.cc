#include <cstring>

#include "client/c/rows_operation.h"
#include "kernels/gather_reduce_rows.h"
#include "proto/epd/v1/region_layout.h"

namespace epd::client {
namespace {

RowsArguments RowsOf(const epd_gather_args& args) {
  return {args.rank,  args.handle_mem, args.handle_mem_bytes, args.top_k,        args.alignment,
          args.dtype, args.hidden,     args.num_tokens,       args.recv_capacity};
}

}  // namespace

Status GatherOperation::CheckPointers() const {
  if (args_.expert_rows == nullptr && args_.recv_capacity != 0) {
    return MakeStatus(Code::kInvalidArgument, "expert_rows is NULL");
  }
  if (args_.tokens == nullptr && args_.num_tokens != 0) {
    return MakeStatus(Code::kInvalidArgument, "tokens is NULL");
  }
  const bool weights = kind_ == shm::Kind::kDispatchBackward;
  const bool in = args_.recv_topk_weights != nullptr || (weights && args_.recv_capacity == 0);
  const bool out = args_.topk_weights != nullptr || (weights && args_.num_tokens == 0);
  if (in == weights && out == weights) return {};
  return MakeStatus(Code::kInvalidArgument,
                    "recv_topk_weights and topk_weights must%s be NULL for %s",
                    weights ? " not" : "", weights ? "dispatch backward" : "combine");
}

Status GatherOperation::Plan(const Formation& formation, shm::SlotRequest* request) {
  request->kind = kind_;
  const RowsArguments rows = RowsOf(args_);
  if (Status s = CheckPointers(); !s.ok()) return s;
  if (Status s = CheckRows(formation, rows, &plan_); !s.ok()) return s;
  DescribeRows(rows, plan_, request);
  const bool weights = kind_ == shm::Kind::kDispatchBackward;
  drop_ = formation.spec.drop_on_overflow;
  if (!drop_ && request->demand > args_.recv_capacity) {
    return MakeStatus(Code::kInvalidArgument,
                      "recv_capacity: got %llu slots, the plan's rows fill %llu",
                      static_cast<unsigned long long>(args_.recv_capacity),
                      static_cast<unsigned long long>(request->demand));
  }
  row_bytes_ = request->row_bytes;
  const int64_t live =
      LiveSlots(static_cast<int64_t>(request->demand), static_cast<int64_t>(args_.recv_capacity));
  stage_bytes_ =
      GatherStageBytes({.num_rows = live, .row_bytes = row_bytes_, .has_weights = weights});
  const bool worker = formation.spec.executor == Executor::kWorker;
  plan_bytes_ = worker ? plan_.used_bytes : 0;
  request->has_weights = weights ? 1 : 0;
  request->plan_bytes = static_cast<uint32_t>(plan_bytes_);
  request->stage_bytes = shm::StageOffset(plan_bytes_) + stage_bytes_;
  if (worker) {
    request->out_bytes =
        shm::OutBytes(args_.num_tokens * row_bytes_, weights ? args_.num_tokens * args_.top_k : 0);
  }
  return {};
}

Status GatherOperation::Stage(const Admitted& admitted) {
  if (plan_bytes_ != 0) {
    if (Status s = FromKernel(StagePlan(plan_, admitted.region.data(), plan_bytes_)); !s.ok())
      return s;
  }
  StageGatherArgs stage;
  stage.plan = &plan_;
  stage.rows = args_.expert_rows;
  stage.weights = args_.recv_topk_weights;
  stage.capacity = static_cast<int64_t>(args_.recv_capacity);
  stage.row_bytes = row_bytes_;
  stage.stage = admitted.region.data() + shm::StageOffset(plan_bytes_);
  stage.stage_bytes = stage_bytes_;
  stage.skip_own_rows = !admitted.worker_executor;
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
  const uint64_t rows = args_.num_tokens * row_bytes_;
  if (rows != 0) std::memcpy(args_.tokens, out, rows);
  if (args_.topk_weights != nullptr) {
    std::memcpy(args_.topk_weights, out + shm::OutWeightsOffset(rows),
                args_.num_tokens * args_.top_k * 4);
  }
  return {};
}

void GatherOperation::ZeroOutputs() {
  size_t bytes = 0;
  const uint64_t row_bytes = args_.hidden * DtypeBytes(args_.dtype);
  if (args_.tokens != nullptr && !__builtin_mul_overflow(args_.num_tokens, row_bytes, &bytes)) {
    std::memset(args_.tokens, 0, bytes);
  }
  if (args_.topk_weights != nullptr &&
      !__builtin_mul_overflow(args_.num_tokens, args_.top_k * 4u, &bytes)) {
    std::memset(args_.topk_weights, 0, bytes);
  }
}

}  // namespace epd::client
