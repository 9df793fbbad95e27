#include "proto/epd/v1/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace epd {
namespace {

using Problem = PrivateFolder::Problem;

// The longest socket in it.
constexpr char kLongestName[] = "/epd-grpc.sock";
constexpr size_t kLongestNameBytes = sizeof kLongestName - 1;
constexpr size_t kOwnNameBytes = sizeof "/epd" - 1;

PathFacts FactsOf(int result, const struct stat& found) {
  if (result != 0) return {.error = errno};
  return {.is_folder = S_ISDIR(found.st_mode),
          .is_link = S_ISLNK(found.st_mode),
          .uid = found.st_uid,
          .mode = found.st_mode & 07777u};
}

PathFacts Look(const std::string& path, int (*look)(const char*, struct stat*)) {
  struct stat found = {};
  return FactsOf(look(path.c_str(), &found), found);
}

std::string Octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof text, "%04o", mode & 07777u);
  return text;
}

Code CodeOf(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Code::kResourceExhausted;
    default:
      return Code::kFailedPrecondition;
  }
}

}  // namespace

PrivateFolder::PrivateFolder(const char* xdg_runtime_dir, uid_t uid)
    : from_variable_(xdg_runtime_dir != nullptr && *xdg_runtime_dir != '\0'),
      uid_(uid),
      above_(from_variable_ ? xdg_runtime_dir : "/tmp") {
  while (above_.size() > 1 && above_.back() == '/') above_.pop_back();
  path_ = above_ == "/" ? "" : above_;
  path_ += from_variable_ ? "/epd" : "/epd-" + std::to_string(uid);
}

PrivateFolder PrivateFolder::OfThisProcess() { return {std::getenv("XDG_RUNTIME_DIR"), geteuid()}; }

std::string PrivateFolder::Named() const {
  return from_variable_ ? "XDG_RUNTIME_DIR=" + above_ : above_ + " (XDG_RUNTIME_DIR is not set)";
}

std::string PrivateFolder::Remedy() const {
  const std::string unset =
      from_variable_ ? ", or unset it to have /tmp/epd-" + std::to_string(uid_) : "";
  return "; set XDG_RUNTIME_DIR to a folder of uid " + std::to_string(uid_) + " with mode 0700" +
         unset;
}

Problem PrivateFolder::Cannot(const std::string& what, int error) const {
  return {CodeOf(error),
          "cannot " + what + ": " + std::strerror(error) + " (" + Named() + ")" + Remedy()};
}

Problem PrivateFolder::JudgeName() const {
  if (above_[0] != '/') {
    return {Code::kInvalidArgument,
            "XDG_RUNTIME_DIR: got '" + above_ + "', expected an absolute path" + Remedy()};
  }
  if (path_.size() + kLongestNameBytes <= kMaxSocketPathBytes) return {};
  return {Code::kInvalidArgument,
          "XDG_RUNTIME_DIR has " + std::to_string(above_.size()) + " bytes and may have " +
              std::to_string(kMaxSocketPathBytes - kLongestNameBytes - kOwnNameBytes) +
              ", since a socket's path may have " + std::to_string(kMaxSocketPathBytes) +
              " and that of " + path_ + kLongestName + " would have " +
              std::to_string(path_.size() + kLongestNameBytes) + Remedy()};
}

Problem PrivateFolder::JudgeAbove(const PathFacts& above) const {
  if (above.error == ENOENT) {
    return {Code::kFailedPrecondition, Named() + ": there is no such folder" + Remedy()};
  }
  if (above.error != 0) {
    return {CodeOf(above.error), Named() + ": " + std::strerror(above.error) + Remedy()};
  }
  if (!above.is_folder) return {Code::kFailedPrecondition, Named() + " is no folder" + Remedy()};
  if (above.uid == uid_ || above.uid == 0) return {};
  return {Code::kPermissionDenied, Named() + " is of user " + std::to_string(above.uid) +
                                       ", and this process of user " + std::to_string(uid_) +
                                       " (sudo -E and su keep the variable)" + Remedy()};
}

Problem PrivateFolder::JudgeOwn(const PathFacts& above, const PathFacts& own) const {
  if (own.error == ENOENT) return {};  // It can be made, or Make says why not.
  if (own.error != 0) {
    return {CodeOf(own.error), path_ + ": " + std::strerror(own.error) + " (" + Named() +
                                   " is of user " + std::to_string(above.uid) + ", mode " +
                                   Octal(above.mode) + "; this process is of user " +
                                   std::to_string(uid_) + ")" + Remedy()};
  }
  const bool is_own = own.is_folder && own.uid == uid_;
  if (is_own && (own.mode & 077) == 0) return {};
  std::string text =
      path_ + " must be a folder of user " + std::to_string(uid_) + " with mode 0700, and is ";
  text += own.is_link ? "a symbolic link" : own.is_folder ? "a folder" : "no folder";
  text += " of user " + std::to_string(own.uid) + " with mode " + Octal(own.mode) + ": ";
  if (is_own) {
    text += "chmod 700 it";
  } else if (above.uid == uid_ || uid_ == 0) {
    text += "move it away";
  } else {
    text += "user " + std::to_string(own.uid) + " or root can remove it";
  }
  return {Code::kPermissionDenied, text + Remedy()};
}

Problem PrivateFolder::Judge(const PathFacts& above, const PathFacts& own) const {
  if (Problem bad = JudgeName(); !bad.ok()) return bad;
  if (Problem bad = JudgeAbove(above); !bad.ok()) return bad;
  return JudgeOwn(above, own);
}

Problem PrivateFolder::Check() const { return Judge(Look(above_, stat), Look(path_, lstat)); }

Problem PrivateFolder::Make() const {
  if (Problem bad = Check(); !bad.ok()) return bad;
  if (mkdir(path_.c_str(), 0700) == 0) {
    chmod(path_.c_str(), 0700);  // Whatever the umask says.
  } else if (errno != EEXIST) {
    return Cannot("make " + path_ + " for a private epd", errno);
  }
  return Check();
}

}  // namespace epd
