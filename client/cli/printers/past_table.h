// The last operations of a group's ranks, side by side.
#pragma once

#include <string>

#include "proto/epd/v1/node.pb.h"

namespace epd::cli {

// A line per operation, the newest first; a column per set of ranks that are in the same phase of
// every one of them. Operations that all ranks have done and that are followed by no other are
// counted only, unless `all`. Empty when nothing is known. At most 100 columns wide.
std::string PastText(const epd::v1::ExplainGroupResponse& why, bool all);

}  // namespace epd::cli
