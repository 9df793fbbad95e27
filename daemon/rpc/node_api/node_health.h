// Whether this node does its work, in one word and a sentence per problem.
#pragma once

#include <string>
#include <vector>

#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

struct NodeHealth {
  v1::Health health = v1::HEALTH_OK;
  std::vector<std::string> problems;  // Empty when OK.
};

// Control thread.
NodeHealth JudgeHealth(const Node& node);

// True when the worker has not answered a question in time: its figures are the last known ones.
bool FiguresAreStale(const Node& node);

}  // namespace epd
