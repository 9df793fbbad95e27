#include <string>

#include "client/c/row_parts.h"
#include "client/c/rows_operation.h"
#include "kernels/scatter_rows.h"

namespace epd::client {

Status ScatterOperation::CheckPointers() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const RowPart& part = parts_[i];
    const std::string of = i == 0 ? "" : "more[" + std::to_string(i - 1) + "].";
    if (part.tokens == nullptr && args_.num_tokens != 0) {
      return MakeStatus(Code::kInvalidArgument, "%stokens is NULL", of.c_str());
    }
    if (part.recv_tokens == nullptr && args_.recv_capacity != 0) {
      return MakeStatus(Code::kInvalidArgument, "%srecv_tokens is NULL", of.c_str());
    }
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
  RowsArguments rows = RowsOf(args_);
  if (Status s = DivideRows(args_, &rows, &parts_); !s.ok()) return s;
  if (Status s = CheckPointers(); !s.ok()) return s;
  if (Status s = PlanRows(formation, rows, request); !s.ok()) return s;
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
    for (const RowPart& part : parts_) PackRows(part, args_.num_tokens, to);
    StageWeights(to, args_.topk_weights, region_.num_weights);
    return {};
  }
  StageScatterArgs stage;
  stage.plan = &plan_;
  stage.weights = args_.topk_weights;
  stage.num_tokens = static_cast<int64_t>(args_.num_tokens);
  stage.stage = to;
  stage.stage_bytes = region_.bare_stage_bytes();
  stage.skip_own_rows = !admitted.worker_executor;
  for (const RowPart& part : parts_) {
    stage.rows = part.tokens;
    stage.row_bytes = part.row_bytes;
    stage.slice = part.slice;
    const bool first = &part == &parts_.front();
    const KernelError error = first ? StageScatter(stage) : StageScatterSlice(stage);
    if (!error.ok()) return FromKernel(error);
  }
  return {};
}

Status ScatterOperation::Pull(const Admitted& admitted) {
  PullScatterArgs pull;
  pull.plan = &plan_;
  pull.sources = admitted.stages.data();
  pull.capacity = static_cast<int64_t>(args_.recv_capacity);
  pull.recv_weights = args_.recv_topk_weights;
  pull.drop_on_overflow = drop_;
  pull.own_weights = args_.topk_weights;
  for (const RowPart& part : parts_) {
    pull.row_bytes = part.row_bytes;
    pull.recv_rows = part.recv_tokens;
    pull.own_rows = part.tokens;
    pull.slice = part.slice;
    if (const KernelError error = PullScatter(pull); !error.ok()) return FromKernel(error);
    pull.recv_weights = nullptr;  // They came with the first.
  }
  return {};
}

Status ScatterOperation::TakeOutput(const Admitted&, const std::byte* out) {
  for (const RowPart& part : parts_) UnpackRows(part, region_.out_rows, out);
  CopyOutWeights(out, args_.recv_topk_weights);
  return {};
}

void ScatterOperation::ZeroOutputs() {
  Zero(args_.recv_tokens, args_.recv_capacity, args_.hidden * DtypeBytes(args_.dtype));
  Zero(args_.recv_topk_weights, args_.recv_capacity, 4);
  if (args_.more == nullptr || args_.num_more > EPD_MAX_MORE_ROWS) return;
  for (uint32_t i = 0; i < args_.num_more; ++i) {
    const epd_more_rows& more = args_.more[i];
    Zero(more.recv_tokens, args_.recv_capacity, more.hidden * DtypeBytes(more.dtype));
  }
}

}  // namespace epd::client
