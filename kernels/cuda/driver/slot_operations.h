// The cycle of a slot's word as operations of a stream (proto/epd/v1/slot_stream.h).
#pragma once

#include <vector>

#include "kernels/cuda/driver/cuda_abi.h"

namespace epd::cuda {

// `slot`: the device's address of the slot, from host_get_device_pointer. To be given to stream_batch as
// they are: the same bytes at every use, inside of a capture and outside.
std::vector<BatchedOperation> ArmOperations(DevicePointer slot);
std::vector<BatchedOperation> WaitOperations(DevicePointer slot);

}  // namespace epd::cuda
