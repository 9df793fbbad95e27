#include "client/c/rows_operation.h"

#include <algorithm>
#include <cstring>

#include "proto/epd/v1/operation_kind.h"
#include "proto/failpoint/failpoint.h"

namespace epd::client {

Status RowsOperation::PlanRows(const Formation& formation, const RowsArguments& rows,
                               shm::SlotRequest* request) {
  if (Status s = CheckRows(formation, rows, &plan_); !s.ok()) return s;
  DescribeRows(rows, plan_, request);
  // An executor knows this formation alone, not the one that the plan may have been carried over from.
  plan_.ids.group_id = formation.group_id;
  plan_.ids.epoch = formation.epoch;
  request->has_weights = has_weights_ ? 1 : 0;
  drop_ = formation.spec.drop_on_overflow;
  on_device_ = IsOnDevice(formation.spec);
  row_bytes_ = request->row_bytes;
  num_live_ = std::min(request->announce.demand, rows.recv_capacity);
  const bool worker = formation.spec.executor == Executor::kWorker;
  counted_ = CountedExperts(formation, rows.rank);
  region_ = MakeLayout(kind_,
                       {.num_ranks = formation.spec.num_ranks,
                        .num_experts = formation.spec.num_experts,
                        .num_tokens = rows.num_tokens,
                        .num_slots = rows.recv_capacity,
                        .top_k = rows.top_k,
                        .row_bytes = row_bytes_,
                        .has_weights = has_weights_,
                        .plan_bytes = on_device_ ? RoutingPlanBytes(plan_.spec) : plan_.used_bytes,
                        .num_routes = static_cast<uint64_t>(plan_.num_routes),
                        .num_live = num_live_,
                        .counted_experts = counted_.size()},
                       MakeStorage(on_device_, worker));
  request->plan_bytes = static_cast<uint32_t>(region_.plan_bytes);
  request->stage_bytes = region_.stage_bytes;
  request->out_bytes = region_.out_bytes;
  return {};
}

// A rank without experts counts none.
std::vector<int32_t> RowsOperation::CountedExperts(const Formation& formation,
                                                   uint32_t rank) const {
  std::vector<int32_t> counted;
  if (!formation.several_nodes || shm::Scatters(kind_)) return counted;
  const auto self = static_cast<int32_t>(rank);
  const bool of_all = !formation.counts_of_own_experts;
  const ExpertRange range =
      of_all ? ExpertRange{0, plan_.spec.num_experts} : OwnedExpertRange(plan_.spec, self);
  for (int32_t e = range.begin; e < range.end; ++e) {
    if (of_all || ExpertOwner(plan_.spec, e) == self) counted.push_back(e);
  }
  return counted;
}

Status RowsOperation::StagePlanCopy(const Admitted& admitted, std::byte** stage) const {
  *stage = admitted.region.data() + region_.stage_at;
  if (region_.plan_bytes == 0) return {};
  const Status staged = FromKernel(StagePlan(plan_, admitted.region.data(), region_.plan_bytes));
  EPD_FAILPOINT_FLIP("client.stage.plan", admitted.region.data(), region_.plan_bytes);
  return staged;
}

void RowsOperation::StageTensor(std::byte* to, const void* rows, uint64_t num_rows,
                                const float* weights, uint64_t num_weights) const {
  if (num_rows != 0) std::memcpy(to, rows, num_rows * row_bytes_);
  StageWeights(to, weights, num_weights);
}

void RowsOperation::StageWeights(std::byte* to, const float* weights, uint64_t num_weights) const {
  if (weights == nullptr || num_weights == 0) return;
  std::memcpy(to + region_.weights_at, weights, num_weights * 4);
}

void RowsOperation::CopyOutput(const std::byte* out, void* rows, float* weights) const {
  if (region_.out_rows != 0) std::memcpy(rows, out, region_.out_rows * row_bytes_);
  CopyOutWeights(out, weights);
}

void RowsOperation::CopyOutWeights(const std::byte* out, float* weights) const {
  if (weights == nullptr) return;
  std::memcpy(weights, out + region_.out_weights_at, region_.num_out_weights * 4);
}

void RowsOperation::Zero(void* to, uint64_t count, uint64_t bytes_each) {
  size_t bytes = 0;
  if (to != nullptr && !__builtin_mul_overflow(count, bytes_each, &bytes)) {
    std::memset(to, 0, bytes);
  }
}

}  // namespace epd::client
