// What this node answers to more than one kind of caller. Control thread.
#pragma once

#include "absl/status/status.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

void FillGpu(const WorkerEntry& entry, v1::Gpu& out);
absl::Status FillStatus(const Node& node, v1::GetStatusResponse& out);

}  // namespace epd
