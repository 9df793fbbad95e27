#include "kernels/cuda/driver/slot_operations.h"

#include "proto/epd/v1/slot_stream.h"

namespace epd::cuda {
namespace {

BatchedOperation Convert(DevicePointer slot, const shm::StreamWordOperation& word) {
  BatchedOperation operation = {};
  operation.value.operation = word.is_wait ? kWaitValue32 : kWriteValue32;
  operation.value.address = slot + word.offset;
  operation.value.value = word.value;
  operation.value.flags = word.is_wait ? kWaitGreaterOrEqual : kWriteDefault;
  return operation;
}

}  // namespace

std::vector<BatchedOperation> ArmOperations(DevicePointer slot) {
  std::vector<BatchedOperation> operations;
  for (const auto& word : shm::kArmOnStream) operations.push_back(Convert(slot, word));
  return operations;
}

std::vector<BatchedOperation> WaitOperations(DevicePointer slot) {
  std::vector<BatchedOperation> operations;
  for (const auto& word : shm::kWaitOnStream) operations.push_back(Convert(slot, word));
  return operations;
}

}  // namespace epd::cuda
