// How much device memory a group's arenas take.
#pragma once

#include "daemon/core/group_spec.h"
#include "daemon/worker/staging/staging.h"

namespace epd {

// A stream region for the largest operation that the spec allows, and as much again for operations that are not
// on a stream. In whole pages of a device.
DeviceArenas PlanDeviceArenas(const GroupSpec& spec);

}  // namespace epd
