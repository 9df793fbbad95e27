// What `epctl trace` prints.
#pragma once

#include <string>

#include "client/cli/chrome_trace.pb.h"
#include "proto/epd/v1/node.pb.h"

namespace epd::cli {

// Pure: all parts of operations in one time, the reference node's; a process per worker, a thread per rank (several where its
// operations overlap), a slice per operation with its phases in it, and an arrow from the call of the rank that came last to where
// each of the others went on.
ChromeTrace MakeChromeTrace(const epd::v1::GetTraceResponse& traces, const std::string& group);

// One line, without what is empty or zero.
std::string ChromeTraceJson(const ChromeTrace& trace);

// Adds a page to what came before, by worker: the ranks' parts, and the better one of two looks at a clock.
void AddTraces(const epd::v1::GetTraceResponse& page, epd::v1::GetTraceResponse& all);

}  // namespace epd::cli
