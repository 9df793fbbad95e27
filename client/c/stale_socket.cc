#include "client/c/stale_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "client/c/unique_fd.h"

namespace epd::client {
namespace {

constexpr const char* kEnding = ".sock";

// A socket that the kernel knows nobody behind: any other answer may be a living one's.
bool IsStale(const std::string& path) {
  struct stat facts = {};
  if (lstat(path.c_str(), &facts) != 0 || !S_ISSOCK(facts.st_mode)) return false;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return probe.valid() &&
         connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

// As epd derives it, unless grpc_socket says otherwise.
std::string GrpcSocketOf(const std::string& path) {
  const std::string ending = kEnding;
  const bool has = path.size() > ending.size() &&
                   path.compare(path.size() - ending.size(), ending.size(), ending) == 0;
  return has ? path.substr(0, path.size() - ending.size()) + "-grpc" + ending : path + "-grpc";
}

}  // namespace

void RemoveStaleFiles(const std::string& socket_path) {
  const std::string lock_path = socket_path + ".lock";
  const UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!lock.valid() || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  struct stat held = {};
  struct stat there = {};
  // Another one's: somebody was faster, and an epd may be starting.
  if (fstat(lock.get(), &held) != 0 || stat(lock_path.c_str(), &there) != 0 ||
      held.st_ino != there.st_ino || held.st_dev != there.st_dev) {
    return;
  }
  for (const std::string& path : {socket_path, GrpcSocketOf(socket_path)}) {
    if (IsStale(path)) unlink(path.c_str());
  }
  unlink(lock_path.c_str());
}

}  // namespace epd::client
