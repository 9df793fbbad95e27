#include "daemon/node/workers/wire_address.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

}  // namespace epd
