// A few bytes of this process to the device, at the start of a group.
#pragma once

#include <cstddef>

#include "client/c/status.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// Copies `bytes` bytes, at least one, to `to`, and waits until they are there. Needs the device's context current, and
// nothing pending in its streams: it registers pages.
//   RESOURCE_EXHAUSTED   there are no pages
//   FAILED_PRECONDITION  the driver refuses them
//   DEADLINE_EXCEEDED    the copy has not ended in time
Status Upload(const cuda::DriverTable& driver, const void* from, size_t bytes,
              cuda::DevicePointer to);

}  // namespace epd::client
