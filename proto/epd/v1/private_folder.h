// Where an epd's socket lies if nobody names one. The one rule of the client library, epd and epctl, and through the library
// of epd.cluster:
//
//   the node's       /run/epd/epd.sock
//   a user's own     $XDG_RUNTIME_DIR/epd/epd.sock, or /tmp/epd-UID/epd.sock where the variable is not set, or empty
//
// A folder that the variable names is taken or refused, never replaced by another one: processes that chose for themselves
// would not meet. TMPDIR and HOME are not read, since those of two processes of one user may differ.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "proto/epd/v1/code.h"

namespace epd {

inline constexpr char kNodeFolder[] = "/run/epd";
inline constexpr char kNodeSocket[] = "/run/epd/epd.sock";
inline constexpr size_t kMaxSocketPathBytes = 107;  // sockaddr_un without its terminating zero.

// What the kernel says of a path.
struct PathFacts {
  int error = 0;  // errno of asking; 0: all below is true.
  bool is_folder = false;
  bool is_link = false;
  uid_t uid = 0;
  mode_t mode = 0;  // Permissions alone.
};

// The folder of one user's private epd. Only this user may use it: mode 0700.
class PrivateFolder {
 public:
  // OK, or why the folder cannot be used. The text names the variable, what was got and expected, and ends with what to do, to
  // which a program may add another way (EPD_SOCKET, --socket).
  //   INVALID_ARGUMENT     the variable is no absolute path, or too long for a socket below it
  //   FAILED_PRECONDITION  there is no such folder, or none can be made there (a file, a read-only file system)
  //   PERMISSION_DENIED    it is another user's, or open to others, or this user may not make it
  //   RESOURCE_EXHAUSTED   the file system is full
  struct Problem {
    Code code = Code::kOk;
    std::string text;
    bool ok() const { return code == Code::kOk; }
  };

  // `xdg_runtime_dir`: the variable's value, null where it is not set.
  PrivateFolder(const char* xdg_runtime_dir, uid_t uid);
  static PrivateFolder OfThisProcess();

  const std::string& path() const { return path_; }
  std::string socket_path() const { return path_ + "/epd.sock"; }

  // Whether it can be used, or made. Looks, and changes nothing.
  Problem Check() const;
  // Makes it if it is not there.
  Problem Make() const;
  // Of something that failed in it with `error` (errno): "cannot open X: No space left on device; ..."
  Problem Cannot(const std::string& what, int error) const;

  // Check by what the kernel says of the folder above (links followed) and of this one (a link itself). Pure.
  Problem Judge(const PathFacts& above, const PathFacts& own) const;

 private:
  Problem JudgeName() const;
  Problem JudgeAbove(const PathFacts& above) const;
  Problem JudgeOwn(const PathFacts& above, const PathFacts& own) const;
  std::string Named() const;   // "XDG_RUNTIME_DIR=/run/user/7", "/tmp (XDG_RUNTIME_DIR is not set)"
  std::string Remedy() const;  // "; set XDG_RUNTIME_DIR to ..."

  bool from_variable_;
  uid_t uid_;
  std::string above_;
  std::string path_;
};

}  // namespace epd
