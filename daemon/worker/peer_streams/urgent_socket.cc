#include "daemon/worker/peer_streams/urgent_socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace epd {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

std::string Named(const in_addr& host, in_port_t port) {
  char text[INET_ADDRSTRLEN];
  return absl::StrCat("ipv4:", inet_ntop(AF_INET, &host, text, sizeof text), ":", ntohs(port));
}

std::string Named(const sockaddr_in6& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) {
    in_addr host = {};
    constexpr size_t kWhereItLies = 12;
    __builtin_memcpy(&host, address.sin6_addr.s6_addr + kWhereItLies, sizeof host);
    return Named(host, address.sin6_port);
  }
  char text[INET6_ADDRSTRLEN];
  return absl::StrCat("ipv6:[", inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text),
                      "]:", ntohs(address.sin6_port));
}

// Empty: no connected TCP socket.
std::string PeerOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  if (address.ss_family == AF_INET) {
    const auto& inet = reinterpret_cast<const sockaddr_in&>(address);
    return Named(inet.sin_addr, inet.sin_port);
  }
  if (address.ss_family != AF_INET6) return "";
  return Named(reinterpret_cast<const sockaddr_in6&>(address));
}

void Mark(int fd) {
  // Of a connection of either family only one of the first two is known to the kernel; and they
  // change the priority, which therefore comes last.
  setsockopt(fd, IPPROTO_IP, IP_TOS, &kUrgentTrafficClass, sizeof kUrgentTrafficClass);
  setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &kUrgentTrafficClass, sizeof kUrgentTrafficClass);
  setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &kUrgentPriority, sizeof kUrgentPriority);
}

}  // namespace

int MarkUrgent(absl::string_view peer) {
  const std::string wanted = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
  const std::unique_ptr<DIR, CloseFolder> folder(opendir("/proc/self/fd"));
  int marked = 0;
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->d_name, &fd) || PeerOf(fd) != wanted) continue;
    Mark(fd);
    ++marked;
  }
  return marked;
}

}  // namespace epd
