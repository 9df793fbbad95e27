// How much device memory a group's arenas take.
#pragma once

#include "daemon/core/group_spec.h"
#include "daemon/worker/staging.h"

namespace epd {

// A lane for the largest operation that the spec allows, and as much again for operations that are not
// on a stream. In whole pages of a device.
DeviceArenas PlanDeviceArenas(const GroupSpec& spec);

}  // namespace epd
