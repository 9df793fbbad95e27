// Lets the network know which connections carry what others wait for.
#pragma once

#include "absl/strings/string_view.h"

namespace epd {

// A link's queue is shared with the large rows, and behind those a small operation would wait at each
// of its steps. So packets of its connections say that they are urgent: to this machine's queues by
// SO_PRIORITY (pfifo_fast, prio, mq over several), to switches by the DSCP "low-latency data"
// (AF21). Queues that go by flow (fq_codel, fq) need neither; one that goes by nothing stays as it is.
inline constexpr int kUrgentTrafficClass = 18 << 2;  // The byte that holds the DSCP.
inline constexpr int kUrgentPriority = 6;            // The kernel's TC_PRIO_INTERACTIVE.

// Marks this process's TCP connections with `peer`, as gRPC names it: "ipv4:10.0.0.2:4000",
// "ipv6:%5B::1%5D:4000". gRPC shows nobody its sockets, so they are looked for among the open
// descriptors. Returns how many there are; a peer that is not named like this has none.
int MarkUrgent(absl::string_view peer);

}  // namespace epd
