#include "daemon/tls/address.h"

#include <arpa/inet.h>

#include <cstdint>

namespace epd {
namespace {

constexpr bool Within(uint32_t address, uint32_t net, int bits) {
  return (address >> (32 - bits)) == (net >> (32 - bits));
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

bool IsLoopback(const std::string& host) {
  if (host == "localhost" || host.rfind("unix", 0) == 0) return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return Within(ntohl(v4.s_addr), 0x7f000000, 8);
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsPrivate(const std::string& host) {
  if (IsLoopback(host)) return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    const uint32_t address = ntohl(v4.s_addr);
    return Within(address, 0x0a000000, 8) || Within(address, 0xac100000, 12) ||
           Within(address, 0xc0a80000, 16) || Within(address, 0xa9fe0000, 16) ||
           Within(address, 0x64400000, 10);
  }
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return true;
  return IN6_IS_ADDR_LINKLOCAL(&v6) || (v6.s6_addr[0] & 0xfe) == 0xfc;
}

}  // namespace epd
