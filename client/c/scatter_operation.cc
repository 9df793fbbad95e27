#include <cstring>

#include "client/c/rows_operation.h"
#include "kernels/scatter_rows.h"
#include "proto/epd/v1/region_layout.h"

namespace epd::client {
namespace {

RowsArguments RowsOf(const epd_scatter_args& args) {
  return {args.rank,  args.handle_mem, args.handle_mem_bytes, args.top_k,        args.alignment,
          args.dtype, args.hidden,     args.num_tokens,       args.recv_capacity};
}

}  // namespace

Status ScatterOperation::CheckPointers() const {
  if (args_.tokens == nullptr && args_.num_tokens != 0) {
    return MakeStatus(Code::kInvalidArgument, "tokens is NULL");
  }
  if (args_.recv_tokens == nullptr && args_.recv_capacity != 0) {
    return MakeStatus(Code::kInvalidArgument, "recv_tokens is NULL");
  }
  const bool weights = kind_ == shm::Kind::kDispatch;
  const bool in = args_.topk_weights != nullptr || (weights && args_.num_tokens == 0);
  const bool out = args_.recv_topk_weights != nullptr || (weights && args_.recv_capacity == 0);
  if (in == weights && out == weights) return {};
  return MakeStatus(Code::kInvalidArgument,
                    "topk_weights and recv_topk_weights must%s be NULL for %s",
                    weights ? " not" : "", weights ? "dispatch" : "combine backward");
}

Status ScatterOperation::Plan(const Formation& formation, shm::SlotRequest* request) {
  request->kind = kind_;
  const RowsArguments rows = RowsOf(args_);
  if (Status s = CheckPointers(); !s.ok()) return s;
  if (Status s = CheckRows(formation, rows, &plan_); !s.ok()) return s;
  DescribeRows(rows, plan_, request);
  const bool weights = kind_ == shm::Kind::kDispatch;
  drop_ = formation.spec.drop_on_overflow;
  // dispatch's overflow is the worker's to say: it knows every rank's demand.
  if (!weights && !drop_ && request->demand > args_.recv_capacity) {
    return MakeStatus(Code::kInvalidArgument,
                      "recv_capacity: got %llu slots, the plan's rows need %llu",
                      static_cast<unsigned long long>(args_.recv_capacity),
                      static_cast<unsigned long long>(request->demand));
  }
  row_bytes_ = request->row_bytes;
  stage_bytes_ = ScatterStageBytes({.num_tokens = plan_.num_tokens,
                                    .num_routes = plan_.num_routes,
                                    .num_ranks = plan_.spec.num_ranks,
                                    .row_bytes = row_bytes_});
  const bool worker = formation.spec.executor == Executor::kWorker;
  plan_bytes_ = worker ? plan_.used_bytes : 0;
  request->has_weights = weights ? 1 : 0;
  request->plan_bytes = static_cast<uint32_t>(plan_bytes_);
  request->stage_bytes = shm::StageOffset(plan_bytes_) + stage_bytes_;
  if (worker) {
    request->out_bytes =
        shm::OutBytes(args_.recv_capacity * row_bytes_, weights ? args_.recv_capacity : 0);
  }
  return {};
}

Status ScatterOperation::Stage(const Admitted& admitted) {
  if (plan_bytes_ != 0) {
    if (Status s = FromKernel(StagePlan(plan_, admitted.region.data(), plan_bytes_)); !s.ok())
      return s;
  }
  StageScatterArgs stage;
  stage.plan = &plan_;
  stage.rows = args_.tokens;
  stage.weights = args_.topk_weights;
  stage.num_tokens = static_cast<int64_t>(args_.num_tokens);
  stage.row_bytes = row_bytes_;
  stage.stage = admitted.region.data() + shm::StageOffset(plan_bytes_);
  stage.stage_bytes = stage_bytes_;
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
  const uint64_t rows = args_.recv_capacity * row_bytes_;
  if (rows != 0) std::memcpy(args_.recv_tokens, out, rows);
  if (args_.recv_topk_weights != nullptr) {
    std::memcpy(args_.recv_topk_weights, out + shm::OutWeightsOffset(rows),
                args_.recv_capacity * 4);
  }
  return {};
}

void ScatterOperation::ZeroOutputs() {
  size_t bytes = 0;
  const uint64_t row_bytes = args_.hidden * DtypeBytes(args_.dtype);
  if (args_.recv_tokens != nullptr &&
      !__builtin_mul_overflow(args_.recv_capacity, row_bytes, &bytes)) {
    std::memset(args_.recv_tokens, 0, bytes);
  }
  if (args_.recv_topk_weights != nullptr && args_.recv_capacity <= SIZE_MAX / 4) {
    std::memset(args_.recv_topk_weights, 0, args_.recv_capacity * 4);
  }
}

}  // namespace epd::client
