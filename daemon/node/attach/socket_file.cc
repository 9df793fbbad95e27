#include "daemon/node/attach/socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace epd {
namespace {

sockaddr_un Address(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), kMaxSocketPathBytes));
  return address;
}

UniqueFd NewSocket() {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

absl::Status Failed(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("socket '", path, "': ", what));
}

}  // namespace

absl::Status CheckSocketPath(const std::string& path, const std::string& setting) {
  if (path.size() > kMaxSocketPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat(setting, ": got a path of ", path.size(),
                                                   " bytes, expected at most ", kMaxSocketPathBytes,
                                                   " (the kernel's limit): '", path, "'"));
  }
  if (path.empty() || path[0] != '/' || path.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, ": got '", path, "', expected the absolute path of a file"));
  }
  return absl::OkStatus();
}

absl::Status PrepareFolderOf(const std::string& path) {
  const std::string folder = path.rfind('/') == 0 ? "/" : path.substr(0, path.rfind('/'));
  const uid_t own = geteuid();
  if (mkdir(folder.c_str(), own == 0 ? 0755 : 0700) == 0) {
    // Whatever the umask says: others reach the node's socket through it.
    if (own == 0) chmod(folder.c_str(), 0755);
    return absl::OkStatus();
  }
  if (errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make the folder '", folder, "': ", std::strerror(errno)));
  }
  struct stat found;
  if (stat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("'", folder, "' is not a folder"));
  }
  if (found.st_uid != own && found.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("the folder '", folder, "' belongs to uid ",
                                                    found.st_uid, ", expected ", own,
                                                    " or 0; choose another --socket"));
  }
  if ((found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "everybody may write to the folder '%s' (mode %04o); chmod it, or choose another --socket",
        folder, found.st_mode & 07777));
  }
  return absl::OkStatus();
}

bool SomebodyListens(const std::string& path) {
  const UniqueFd probe = NewSocket();
  const sockaddr_un address = Address(path);
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return true;
  return errno == EAGAIN;  // It listens, and its queue is full.
}

absl::StatusOr<UniqueFd> ListenAt(const std::string& path) {
  struct stat found;
  if (lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode))
      return Failed(path, "something that is no socket lies there; move it away");
    unlink(path.c_str());
  }
  UniqueFd listener = NewSocket();
  const sockaddr_un address = Address(path);
  if (!listener.valid() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Failed(path, absl::StrCat("bind: ", std::strerror(errno)));
  }
  if (chmod(path.c_str(), 0666) != 0 || listen(listener.get(), 512) != 0) {
    return Failed(path, absl::StrCat("listen: ", std::strerror(errno)));
  }
  return listener;
}

}  // namespace epd
