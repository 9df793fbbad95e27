// Where the edges put what has happened.
#pragma once

#include <functional>

#include "daemon/control/node_events.h"

namespace epd {

// Queues one event for control. Control thread only.
using EventSink = std::function<void(NodeEvent)>;

}  // namespace epd
