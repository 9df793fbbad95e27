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

bool EndsWith(const std::string& path, const std::string& ending) {
  return path.size() > ending.size() &&
         path.compare(path.size() - ending.size(), ending.size(), ending) == 0;
}

// As epd derives it, unless grpc_socket says otherwise.
std::string GrpcSocketOf(const std::string& path) {
  const std::string ending = kEnding;
  return EndsWith(path, ending) ? path.substr(0, path.size() - ending.size()) + "-grpc" + ending
                                : path + "-grpc";
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// What a path leads through that was deleted: only what is mounted, or is somebody's working folder, outlives that. "": nothing.
std::string DeletedPart(const std::string& socket_path) {
  struct stat facts = {};
  std::string part = socket_path;
  while (stat(part.c_str(), &facts) != 0) {
    const std::string above = FolderOf(part);
    if ((errno != ENOENT && errno != ENOTDIR) || above == part) return "";
    part = above;
  }
  return facts.st_nlink == 0 ? part : "";
}

}  // namespace

std::string WhyNoneCanAnswer(const std::string& socket_path) {
  if (const std::string part = DeletedPart(socket_path); part == socket_path) {
    return part +
           " is a stale mount: the socket's file was deleted outside, where epd was restarted and "
           "made another; start this container again, and let it mount the folder, not the file "
           "[EPD-1405]";
  } else if (!part.empty()) {
    return part + " is a stale mount: the folder was deleted outside, and " + socket_path +
           " cannot come back; start this container again, and keep the folder when epd is "
           "restarted (RuntimeDirectoryPreserve=yes in its unit) [EPD-1405]";
  }
  struct stat facts = {};
  if (stat(socket_path.c_str(), &facts) != 0 || S_ISSOCK(facts.st_mode)) return "";
  if (!S_ISDIR(facts.st_mode)) return socket_path + " is no socket but a file; name epd's socket";
  if (EndsWith(socket_path, kEnding)) {
    return socket_path +
           " is no socket but a folder, as container engines make where they are to mount a file "
           "that is not there; remove it where it was made, and mount the folder that epd's socket "
           "is in";
  }
  return socket_path + " is no socket but a folder; name the socket in it, " + socket_path +
         (socket_path.back() == '/' ? "" : "/") + "epd.sock";
}

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
