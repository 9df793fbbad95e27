#include "daemon/doctor/port_doctor.h"

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/doctor/findings.h"

namespace epd {
namespace {

struct Advice {
  const char* found;
  const char* fix;
};

Advice AdviceOn(PortResult result) {
  switch (result) {
    case PortResult::kOpen:
      return {"reached", ""};
    case PortResult::kRefused:
      return {"refused: the host answers, and nobody listens there or its firewall rejects",
              "see whether epd runs there and listens at that address (epctl config: listen, "
              "advertise, wire_listen); then its firewall's rules that reject with tcp-reset"};
    case PortResult::kTimedOut:
      return {"timed out: nothing came back, as from a firewall that drops, or a host that is off",
              "let this port through the firewalls of both hosts and between them (nft list "
              "ruleset, the cloud's security groups); see whether the host is on"};
    case PortResult::kUnreachable:
      return {"unreachable: a router or a firewall says that there is no way, or it is forbidden",
              "ip route get ADDRESS says which way is taken; look for rules that reject with an "
              "icmp error, and for an interface that is down"};
    case PortResult::kReset:
      return {"reset: the connection was made and broken again at once, as by a proxy in between",
              "see whether a proxy or load balancer has this address; epd's nodes must reach each "
              "other directly"};
    case PortResult::kUnknownName:
      return {"unknown: the host's name has no address", "mend DNS or /etc/hosts on this node"};
  }
  return {"", ""};
}

}  // namespace

PortResult ResultOfConnect(int error) {
  switch (error) {
    case 0:
      return PortResult::kOpen;
    case ECONNREFUSED:
      return PortResult::kRefused;
    case ECONNRESET:
    case EPIPE:
      return PortResult::kReset;
    case ETIMEDOUT:
      return PortResult::kTimedOut;
    default:  // EHOSTUNREACH, ENETUNREACH, EACCES, EPERM, ENETDOWN, ...
      return PortResult::kUnreachable;
  }
}

v1::Finding DiagnosePort(const PortToTry& port, PortResult result, const std::string& detail) {
  const Advice advice = AdviceOn(result);
  return MakeFinding(absl::StrCat("port ", port.address, " (", port.owner, ")"),
                     result == PortResult::kOpen,
                     detail.empty() ? advice.found : absl::StrCat(advice.found, " (", detail, ")"),
                     "groups with ranks on both nodes do not form, or break", advice.fix);
}

std::string PortsToText(const std::vector<PortToTry>& ports) {
  return absl::StrJoin(ports, "\n", [](std::string* out, const PortToTry& port) {
    absl::StrAppend(out, port.address, "=", port.owner);
  });
}

std::vector<PortToTry> PortsFromText(const std::string& text) {
  std::vector<PortToTry> ports;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
    ports.push_back({parts.first, parts.second});
  }
  return ports;
}

}  // namespace epd
