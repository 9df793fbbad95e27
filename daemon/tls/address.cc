#include "daemon/tls/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

namespace epd {
namespace {

constexpr bool Within(uint32_t address, uint32_t net, int bits) {
  return (address >> (32 - bits)) == (net >> (32 - bits));
}

std::string WithoutZone(const std::string& host) { return host.substr(0, host.find('%')); }

bool IsV6(const std::string& host) {
  in6_addr v6{};
  return inet_pton(AF_INET6, WithoutZone(host).c_str(), &v6) == 1;
}

// In this kernel, or for all interfaces of this network namespace.
bool V6IsOff() {
  const int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno == EAFNOSUPPORT;
  close(fd);
  std::ifstream file("/proc/sys/net/ipv6/conf/all/disable_ipv6");
  return file.get() == '1';
}

constexpr char kV6IsOff[] =
    "IPv6 is off on this machine (net.ipv6.conf.all.disable_ipv6, or ipv6.disable=1)";

std::string Interfaces() {
  std::string names;
  if (struct if_nameindex* const all = if_nameindex(); all != nullptr) {
    for (const struct if_nameindex* one = all; one->if_index != 0; ++one)
      names += (names.empty() ? "" : ", ") + std::string(one->if_name);
    if_freenameindex(all);
  }
  return names;
}

// Of one address that a name has.
std::string WhyNotBound(const addrinfo& address) {
  const bool v6 = address.ai_family == AF_INET6;
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0 && bind(fd, address.ai_addr, address.ai_addrlen) != 0) error = errno;
  if (fd >= 0) close(fd);
  if (error == 0) return "";
  if (v6 && V6IsOff()) return kV6IsOff;
  if (error == EADDRNOTAVAIL) return "it is no address of this machine";
  return std::strerror(error);
}

}  // namespace

std::string HostOf(const std::string& address) {
  std::string rest = address;
  for (const char* scheme : {"ipv4:", "ipv6:", "dns:///", "dns:"}) {
    if (rest.rfind(scheme, 0) != 0) continue;
    rest = rest.substr(std::string(scheme).size());
    break;
  }
  // gRPC writes the peers of IPv6 sockets with escapes.
  for (const auto& [escaped, plain] : {std::pair{"%5B", "["}, std::pair{"%5D", "]"}}) {
    const size_t at = rest.find(escaped);
    if (at != std::string::npos) rest.replace(at, 3, plain);
  }
  if (!rest.empty() && rest.front() == '[') return rest.substr(1, rest.find(']') - 1);
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || rest.find(':') != colon) return rest;  // A bare IPv6 address.
  return rest.substr(0, colon);
}

bool IsHostPort(const std::string& text, uint32_t min_port, uint32_t max_port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = text.substr(0, colon);
  const std::string digits = text.substr(colon + 1);
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (!bracketed && host.find_first_of(":[] /,") != std::string::npos) return false;
  if (digits.empty() || digits.size() > 5 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return false;
  const auto port = static_cast<uint32_t>(std::stoul(digits));
  return port >= min_port && port <= max_port;
}

std::string KeepPort(const std::string& wanted, const std::string& served) {
  const bool open = IsHostPort(wanted, 0, 0);
  return open && IsHostPort(served, 1) && HostOf(wanted) == HostOf(served) ? served : wanted;
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost" || host.rfind("unix", 0) == 0) return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return Within(ntohl(v4.s_addr), 0x7f000000, 8);
  in6_addr v6{};
  return inet_pton(AF_INET6, WithoutZone(host).c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsLinkLocal(const std::string& host) {
  in6_addr v6{};
  return inet_pton(AF_INET6, WithoutZone(host).c_str(), &v6) == 1 && IN6_IS_ADDR_LINKLOCAL(&v6);
}

std::string ZoneOf(const std::string& host) {
  const size_t percent = host.find('%');
  return percent == std::string::npos ? "" : host.substr(percent + 1);
}

std::string WhyNotDialled(const std::string& host) {
  if (!IsV6(host)) return "";
  if (V6IsOff()) return kV6IsOff;
  const std::string zone = ZoneOf(host);
  if (zone.empty()) {
    if (!IsLinkLocal(host)) return "";
    return "a link-local address needs a zone, the network interface by which it is reached, as in "
           "[" +
           host + "%eth0]; this machine has " + Interfaces();
  }
  char name[IF_NAMESIZE];
  const bool number = zone.find_first_not_of("0123456789") == std::string::npos;
  const bool there =
      number ? zone.size() < 8 && if_indextoname(static_cast<unsigned>(std::stoul(zone)), name)
             : if_nametoindex(zone.c_str()) != 0;
  if (there) return "";
  return "its zone, " + zone + ", is no network interface of this machine, which has " +
         Interfaces();
}

std::string WhyNotBound(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const std::string why = WhyNotDialled(host); !why.empty()) return why;
  if (const int error = getaddrinfo(host.c_str(), "0", &hints, &found); error != 0)
    return std::string("it has no address here: ") + gai_strerror(error);
  std::string why;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    why = WhyNotBound(*one);
    if (why.empty()) break;
  }
  freeaddrinfo(found);
  return why;
}

bool IsNumeric(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 ||
         inet_pton(AF_INET6, WithoutZone(host).c_str(), &v6) == 1;
}

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
    const int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own = {};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST];
    if (connect(fd, one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      source = own.ss_family == AF_INET6 ? "[" + std::string(text) + "]" : text;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return source;
}

}  // namespace epd
