#include "client/c/rows_operation.h"

#include <cstring>

#include "proto/epd/v1/region_layout.h"

namespace epd::client {

Status RowsOperation::PlanRows(const Formation& formation, const RowsArguments& rows,
                               shm::SlotRequest* request) {
  if (Status s = CheckRows(formation, rows, &plan_); !s.ok()) return s;
  DescribeRows(rows, plan_, request);
  request->has_weights = has_weights_ ? 1 : 0;
  drop_ = formation.spec.drop_on_overflow;
  on_device_ = IsOnDevice(formation.spec);
  row_bytes_ = request->row_bytes;
  return {};
}

void RowsOperation::PlanRegion(const Formation& formation, uint64_t stage_bytes,
                               uint64_t num_out_rows, uint64_t num_out_weights,
                               shm::SlotRequest* request) {
  const bool worker = formation.spec.executor == Executor::kWorker;
  stage_bytes_ = stage_bytes;
  plan_bytes_ = worker ? plan_.used_bytes : 0;
  if (worker && on_device_) plan_bytes_ = RoutingPlanBytes(plan_.spec);
  request->plan_bytes = static_cast<uint32_t>(plan_bytes_);
  request->stage_bytes = shm::StageOffset(plan_bytes_) + stage_bytes_;
  if (worker) {
    request->out_bytes =
        shm::OutBytes(num_out_rows * row_bytes_, has_weights_ ? num_out_weights : 0);
  }
}

Status RowsOperation::StagePlanCopy(const Admitted& admitted, std::byte** stage) const {
  *stage = admitted.region.data() + shm::StageOffset(plan_bytes_);
  if (plan_bytes_ == 0) return {};
  return FromKernel(StagePlan(plan_, admitted.region.data(), plan_bytes_));
}

void RowsOperation::StageTensor(std::byte* to, const Tensor& tensor, uint64_t capacity) const {
  if (tensor.num_rows != 0) std::memcpy(to, tensor.rows, tensor.num_rows * row_bytes_);
  if (tensor.weights == nullptr || tensor.num_weights == 0) return;
  std::memcpy(to + shm::OutWeightsOffset(capacity * row_bytes_), tensor.weights,
              tensor.num_weights * 4);
}

void RowsOperation::CopyOutput(const std::byte* out, uint64_t num_rows, void* rows,
                               uint64_t num_weights, float* weights) const {
  const uint64_t bytes = num_rows * row_bytes_;
  if (bytes != 0) std::memcpy(rows, out, bytes);
  if (weights != nullptr) {
    std::memcpy(weights, out + shm::OutWeightsOffset(bytes), num_weights * 4);
  }
}

void RowsOperation::Zero(void* to, uint64_t count, uint64_t bytes_each) {
  size_t bytes = 0;
  if (to != nullptr && !__builtin_mul_overflow(count, bytes_each, &bytes)) {
    std::memset(to, 0, bytes);
  }
}

}  // namespace epd::client
