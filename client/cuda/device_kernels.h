// The kernels on a device of this process: one module, whichever groups use it.
#pragma once

#include <memory>

#include "client/c/status.h"
#include "kernels/cuda/driver/driver_table.h"
#include "kernels/cuda/driver/kernel_module.h"

namespace epd::client {

// Loads the module unless it is there. It is unloaded with its last user, where the device's context must be current,
// as it must be here. `image` and `driver` outlive it. Devices wait for each other's loading nowhere.
//   FAILED_PRECONDITION  the kernels cannot be loaded (why)
//   DEADLINE_EXCEEDED    another thread has not loaded them in time
Status LoadKernels(const cuda::DriverTable& driver, const void* image, int device,
                   std::shared_ptr<const cuda::KernelModule>* kernels);

}  // namespace epd::client
