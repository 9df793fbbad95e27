// Where this node's workers take streams of other nodes' workers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/core/worker_name.h"
#include "daemon/node/settings/settings.h"

namespace epd {

struct WireAddress {
  // host:port to bind, or behind kTowards or kTowardsLoopback whom to reach from there; empty: nowhere.
  std::string listen;
  std::string advertise;  // What others are told instead of its host; empty: its host.
  std::string problem;    // Why nowhere, where somebody may have expected it.
};

// `wire_listen`, or else what the cluster's own addresses give. Waits for no resolver: where that takes one
// the worker asks it. An explicit port is the CPU's worker's; each GPU's has the next two behind those of the one before.
WireAddress ChooseWireAddress(const Settings& settings, const WorkerName& worker = kCpuWorker);

// Whether other nodes can use the addresses that this one tells them, and this machine those that it is to call.
//   FAILED_PRECONDITION  a link-local address is told to others; names the setting, the address and what to do
//   INVALID_ARGUMENT     an address to call or to listen at cannot be: WhyNotDialled()
absl::Status CheckAddresses(const Settings& settings);

}  // namespace epd
