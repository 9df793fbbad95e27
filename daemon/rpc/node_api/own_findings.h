// What doctor says of this node and its epd, from what both know.
#pragma once

#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Control thread. Reads /proc, /sys and the socket's folder; asks nobody.
v1::GetDoctorResponse DiagnoseSelf(const Node& node);

}  // namespace epd
