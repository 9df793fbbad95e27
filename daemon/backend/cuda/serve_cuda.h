// Whether a worker can serve groups with backend=cuda, and with what.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/backend/cuda/cuda_backend.h"

namespace epd::cuda {

// Opens the driver and the device, after a child process, which may die of it, has tried them.
// `self`: this program's path. `nccl_path`: for groups whose rows cannot go directly; "": none, and `no_nccl` says why.
//   FAILED_PRECONDITION  no driver, no device, or not one that can serve (why)
//   RESOURCE_EXHAUSTED   the device has not that much memory left
absl::StatusOr<std::unique_ptr<CudaBackend>> ServeCuda(const CudaDeviceOptions& options,
                                                       const std::string& self,
                                                       const std::string& nccl_path,
                                                       const std::string& no_nccl);

}  // namespace epd::cuda
