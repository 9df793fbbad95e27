// What is known on this node of its health.
#pragma once

#include "daemon/node/node.h"
#include "daemon/rpc/node_api/health_policy.h"

namespace epd {

// Both on the control thread. The first is what a status tells: groups with their causes.
NodeHealth JudgeHealth(const Node& node);
std::map<std::string, bool> ServingByService(const Node& node);

// True when the worker has not answered a question in time: its figures are the last known ones.
bool FiguresAreStale(const Node& node);

}  // namespace epd
