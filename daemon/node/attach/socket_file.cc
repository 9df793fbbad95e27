#include "daemon/node/attach/socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

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

UniqueFd NewSocket(int type) {
  return UniqueFd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

pid_t PidBehind(int fd) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer.pid;
}

// Pid 0: it listens, and is in another pid namespace. Nothing: nobody listens.
struct Listener {
  pid_t pid = 0;
  int problem = 0;  // Why it cannot be asked.
};
std::optional<Listener> FindListener(const std::string& path) {
  int problem = 0;
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const UniqueFd probe = NewSocket(type);
    const sockaddr_un address = Address(path);
    if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      return Listener{PidBehind(probe.get()), 0};
    problem = errno;
    if (problem == ECONNREFUSED || problem == ENOENT) return std::nullopt;
    if (problem == EAGAIN) break;  // Its queue is full.
  }
  return Listener{0, problem};
}

std::string FolderOf(const std::string& path) {
  return path.rfind('/') == 0 ? "/" : path.substr(0, path.rfind('/'));
}

bool IsOfAnother(const struct stat& found) {
  return found.st_uid != geteuid() && found.st_uid != 0;
}

absl::Status MakeFolder(const std::string& folder) {
  const uid_t own = geteuid();
  struct stat above;
  if (stat(FolderOf(folder).c_str(), &above) == 0 && IsOfAnother(above)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "there is no folder '", folder, "', and what uid ", own, " makes there uid ", above.st_uid,
        ", whose folder is above, could not use or remove; run epd as that user, make the folder "
        "yourself, or choose another --socket"));
  }
  if (mkdir(folder.c_str(), own == 0 ? 0755 : 0700) == 0) {
    // Whatever the umask says: others reach the node's socket through it.
    if (own == 0) chmod(folder.c_str(), 0755);
    return absl::OkStatus();
  }
  if (errno == EEXIST) return absl::OkStatus();  // Somebody was faster.
  return absl::FailedPreconditionError(
      absl::StrCat("cannot make the folder '", folder, "': ", std::strerror(errno)));
}

absl::Status OfPrivate(const PrivateFolder::Problem& problem) {
  if (problem.ok()) return absl::OkStatus();
  return {static_cast<absl::StatusCode>(problem.code),
          absl::StrCat(problem.text, ", or choose another --socket [EPD-1404]")};
}

absl::Status Failed(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("socket '", path, "': ", what));
}

}  // namespace

absl::Status CheckSocketPath(const std::string& path, const std::string& setting) {
  // What is wrong with the variable that a default comes from is said as that.
  if (const PrivateFolder own = PrivateFolder::OfThisProcess(); path == own.socket_path()) {
    if (absl::Status bad = OfPrivate(own.Check()); !bad.ok()) return bad;
  }
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
  const std::string folder = FolderOf(path);
  if (const PrivateFolder own = PrivateFolder::OfThisProcess(); folder == own.path())
    return OfPrivate(own.Make());
  struct stat found = {};
  if (stat(folder.c_str(), &found) != 0) {
    if (absl::Status bad = MakeFolder(folder); !bad.ok()) return bad;
    if (stat(folder.c_str(), &found) != 0) return Failed(path, std::strerror(errno));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("'", folder, "' is not a folder"));
  }
  if (IsOfAnother(found)) {
    return absl::PermissionDeniedError(absl::StrCat("the folder '", folder, "' belongs to uid ",
                                                    found.st_uid, ", expected ", geteuid(),
                                                    " or 0; choose another --socket"));
  }
  if ((found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "everybody may write to the folder '%s' (mode %04o); chmod it, or choose another --socket",
        folder, found.st_mode & 07777));
  }
  return absl::OkStatus();
}

bool SomebodyListens(const std::string& path) { return FindListener(path).has_value(); }

std::string WhoListens(const std::string& path) {
  const std::optional<Listener> found = FindListener(path);
  if (!found.has_value()) return "";
  if (found->pid > 0) return absl::StrCat("another epd (pid ", found->pid, ")");
  if (found->problem == 0) return "another epd (in another pid namespace)";
  if (found->problem == EAGAIN) return "another epd (its queue is full)";
  return absl::StrCat("a program that cannot be asked (", std::strerror(found->problem), ")");
}

SocketFile::SocketFile(std::string path) : path_(std::move(path)) {
  struct stat found;
  if (lstat(path_.c_str(), &found) != 0) {
    path_.clear();
    return;
  }
  device_ = found.st_dev;
  inode_ = found.st_ino;
}

SocketFile SocketFile::Adopt(const std::string& path) {
  SocketFile file(path);
  const std::optional<Listener> found = FindListener(path);
  const bool own = found.has_value() && found->pid == getpid();
  return own ? file : SocketFile();
}

bool SocketFile::IsThere() const {
  struct stat found;
  return !path_.empty() && lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ &&
         found.st_ino == inode_;
}

void SocketFile::Remove() {
  if (IsThere()) unlink(path_.c_str());
  path_.clear();
}

absl::StatusOr<UniqueFd> ListenAt(const std::string& path, int type, mode_t mode) {
  struct stat found;
  if (lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode))
      return Failed(path, "something that is no socket lies there; move it away");
    if (const std::string who = WhoListens(path); !who.empty()) {
      return absl::AlreadyExistsError(absl::StrCat(who, " serves the socket '", path,
                                                   "'; use it, stop it, or choose another path"));
    }
    unlink(path.c_str());
  }
  UniqueFd listener = NewSocket(type);
  const sockaddr_un address = Address(path);
  if (!listener.valid() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Failed(path, absl::StrCat("bind: ", std::strerror(errno)));
  }
  if (chmod(path.c_str(), mode) != 0 || listen(listener.get(), 512) != 0) {
    return Failed(path, absl::StrCat("listen: ", std::strerror(errno)));
  }
  return listener;
}

absl::StatusOr<UniqueFd> ListenAt(const std::string& path) {
  return ListenAt(path, SOCK_SEQPACKET, 0666);
}

}  // namespace epd
