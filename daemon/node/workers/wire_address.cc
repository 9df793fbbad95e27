#include "daemon/node/workers/wire_address.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/tls/address.h"

namespace epd {
namespace {

std::string Host(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? address : address.substr(0, colon);
}

// host:port of the first one of etcd://host:port[,host:port...][/cluster].
std::string FirstAddress(const std::string& rendezvous) {
  const size_t scheme = rendezvous.find("://");
  if (scheme == std::string::npos) return "";
  const std::string rest = rendezvous.substr(scheme + 3);
  return rest.substr(0, rest.find_first_of(",/"));
}

// A worker takes two ports (wire_listen).
std::string ForWorker(const std::string& address, const WorkerName& worker) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (!worker.on_gpu() || colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port == 0) {
    return address;
  }
  return absl::StrCat(address.substr(0, colon + 1),
                      port + 2 * (static_cast<uint32_t>(worker.cuda_device) + 1));
}

// Of etcd://host:port[,host:port...][/cluster].
std::vector<std::string> StoreAddresses(const std::string& rendezvous) {
  const size_t scheme = rendezvous.find("://");
  if (scheme == std::string::npos) return {};
  const std::string rest = rendezvous.substr(scheme + 3);
  return absl::StrSplit(rest.substr(0, rest.find('/')), ',', absl::SkipEmpty());
}

// `why`: how others come to be told `address`.
absl::Status CheckTold(const std::string& address, const std::string& why,
                       const std::string& instead) {
  const std::string host = HostOf(address);
  if (!IsLinkLocal(host)) return absl::OkStatus();
  const std::string zone = ZoneOf(host);
  return absl::FailedPreconditionError(absl::StrCat(
      why, ": other nodes would be told '", host, "', a link-local address",
      zone.empty()
          ? ""
          : absl::StrCat(", of which the zone (", zone, ") is this machine's own name for a link"),
      ", and could not call it; set ", instead,
      " to an address that is the same everywhere, such as one of fd00::/8"));
}

// A family that is off here would be served by another one, and nobody would hear of it.
absl::Status CheckListened(const char* setting, const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  const std::string host = HostOf(address);
  const std::string why = WhyNotDialled(host);
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(setting, ": got '", address, "': ", why,
                   host == "::" ? absl::StrCat("; 0.0.0.0", address.substr(address.rfind(':')),
                                               " listens at all IPv4 addresses")
                                : ""));
}

}  // namespace

WireAddress ChooseWireAddress(const Settings& settings, const WorkerName& worker) {
  const bool anywhere = !settings.tls_ca.empty() || settings.insecure == "yes";
  WireAddress wire;
  wire.listen = ForWorker(settings.wire_listen, worker);
  if (!wire.listen.empty() && !IsHostPort(wire.listen, 0, 65534)) {
    wire.problem = absl::StrCat("wire_listen '", settings.wire_listen, "' leaves the worker ",
                                ToString(worker), " no two ports below 65536; choose a lower one");
    wire.listen.clear();
    return wire;
  }
  if (wire.listen.empty()) {
    std::string host = Host(settings.listen);
    const bool any = host == "0.0.0.0" || host == "[::]";
    if (any) wire.advertise = Host(settings.advertise);
    if (any && wire.advertise.empty()) host.clear();
    const std::string others =
        settings.coordinator.empty() ? FirstAddress(settings.rendezvous) : settings.coordinator;
    if (host.empty() && !others.empty() && !IsNumeric(HostOf(others))) {
      wire.listen = absl::StrCat(anywhere ? kTowards : kTowardsLoopback, others);
      return wire;
    }
    if (host.empty()) host = SourceTowards(others);
    if (!host.empty()) wire.listen = absl::StrCat(host, ":0");
  }
  if (wire.listen.empty() || anywhere || IsLoopback(HostOf(wire.listen))) return wire;
  return {
      .listen = "",
      .advertise = "",
      .problem = absl::StrCat(
          "'", wire.listen,
          "' is no loopback address, and without TLS the rows of other nodes are taken only there; "
          "set tls_ca, tls_cert and tls_key, or, where the whole network is trusted, "
          "insecure=yes")};
}

absl::Status CheckAddresses(const Settings& settings) {
  absl::Status listened = CheckListened("listen", settings.listen);
  listened.Update(CheckListened("wire_listen", settings.wire_listen));
  listened.Update(CheckListened("metrics_listen", settings.metrics_listen));
  if (!listened.ok()) return listened;
  if (!settings.coordinator.empty()) {
    if (const std::string why = WhyNotDialled(HostOf(settings.coordinator)); !why.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("coordinator: got '", settings.coordinator, "': ", why));
    }
  }
  const std::vector<std::string> stores = StoreAddresses(settings.rendezvous);
  std::string last;
  const bool none = !stores.empty() && absl::c_none_of(stores, [&](const std::string& store) {
    last = WhyNotDialled(HostOf(store));
    return last.empty();
  });
  if (none) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous: got '", settings.rendezvous, "': ", last));
  }
  if (settings.listen.empty() && settings.wire_listen.empty() && settings.coordinator.empty() &&
      settings.rendezvous.empty())
    return absl::OkStatus();
  const bool named = !settings.advertise.empty();
  absl::Status told = CheckTold(named ? settings.advertise : settings.listen,
                                absl::StrCat(named ? "advertise: got '" : "listen: got '",
                                             named ? settings.advertise : settings.listen, "'"),
                                "advertise");
  if (!told.ok()) return told;
  const WireAddress wire = ChooseWireAddress(settings);
  return CheckTold(
      wire.advertise.empty() ? wire.listen : wire.advertise,
      settings.wire_listen.empty()
          ? "wire_listen: got nothing, so rows come in at the address from which this node reaches "
            "the others"
          : absl::StrCat("wire_listen: got '", settings.wire_listen, "'"),
      "wire_listen");
}

}  // namespace epd
