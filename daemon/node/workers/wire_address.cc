#include "daemon/node/workers/wire_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/unique_fd.h"
#include "daemon/tls/address.h"

namespace epd {
namespace {

std::string Host(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? address : address.substr(0, colon);
}

// The address that the kernel would send from; nothing is sent.
std::string SourceTowards(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  if (colon == std::string::npos) return "";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(HostOf(peer).c_str(), peer.substr(colon + 1).c_str(), &hints, &found) != 0)
    return "";
  std::string source;
  for (const addrinfo* one = found; one != nullptr && source.empty(); one = one->ai_next) {
    const UniqueFd fd(socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST];
    if (!fd.valid() || connect(fd.get(), one->ai_addr, one->ai_addrlen) != 0 ||
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    source = own.ss_family == AF_INET6 ? absl::StrCat("[", text, "]") : text;
  }
  freeaddrinfo(found);
  return source;
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
    if (host.empty()) host = SourceTowards(settings.coordinator);
    if (host.empty()) host = SourceTowards(FirstAddress(settings.rendezvous));
    if (!host.empty()) wire.listen = absl::StrCat(host, ":0");
  }
  if (wire.listen.empty() || !settings.tls_ca.empty() || IsPrivate(HostOf(wire.listen))) {
    return wire;
  }
  return {
      .listen = "",
      .advertise = "",
      .problem = absl::StrCat(
          "'", wire.listen,
          "' is neither loopback nor private, and without TLS the rows of other nodes are taken "
          "only there; set tls_ca, tls_cert and tls_key, or wire_listen to a private address")};
}

}  // namespace epd
