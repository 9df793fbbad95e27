// Whether this node reaches other nodes' ports, and what stands in between where it does not.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "daemon/doctor/cluster_doctor.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

enum class PortResult {
  kOpen,      // Somebody took the connection and kept it.
  kRefused,   // The host answered that nobody listens there, or its firewall rejects so.
  kTimedOut,  // Nothing came back.
  kUnreachable,  // A router, a firewall or this machine said that there is no way, or that it is forbidden.
  kReset,        // The connection was made, and broken again at once.
  kUnknownName,  // The host's name has no address.
};

// Pure: what connect() meant by `error`, an errno; 0: it is connected.
PortResult ResultOfConnect(int error);

// Pure: with the consequence and the fix that differ by result. `detail`: what the system said.
v1::Finding DiagnosePort(const PortToTry& port, PortResult result, const std::string& detail);

// Tries all at once, with TCP alone; nothing is sent. Blocks for as long as names take to resolve, and at most `patience` after
// that. In the order of `ports`.
v1::GetDoctorResponse TryPorts(const std::vector<PortToTry>& ports, absl::Duration patience);

// A mode of the worker's program that does so, since a name may take its time to resolve.
inline constexpr char kPortDoctorFlag[] = "--doctor-ports=";
// Tries the ports of PortsToText's `text` and writes the serialised findings where DoctorProcess reads. Returns the exit status.
int PortDoctorMain(const std::string& text);
std::string PortsToText(const std::vector<PortToTry>& ports);
std::vector<PortToTry> PortsFromText(const std::string& text);

}  // namespace epd
