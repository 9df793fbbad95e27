// Unix socket paths: is the folder safe, does somebody listen, and making the listener.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "proto/epd/v1/private_folder.h"

namespace epd {

// OK for a path that a socket can be bound to.
//   INVALID_ARGUMENT  empty, relative, or longer than kMaxSocketPathBytes; `setting` names where it
//   comes from
//   as PrivateFolder::Check, of a user's private one
absl::Status CheckSocketPath(const std::string& path, const std::string& setting);

// Makes the folder of `path` if it is missing (0755 for root, else 0700; a user's private one as PrivateFolder has it) and
// checks that nobody else can put another socket in its place.
//   PERMISSION_DENIED    it belongs to another user, or everybody may write there; names owner and mode. Or it is
//                        missing in another user's folder, who could not remove it again
//   FAILED_PRECONDITION  it cannot be made
//   as PrivateFolder::Make
absl::Status PrepareFolderOf(const std::string& path);

// Whether a server accepts connections at `path`. One that cannot be asked, such as one that takes
// another kind of connection, is taken for one that does: a socket is stale only if the kernel says
// that nobody has it.
bool SomebodyListens(const std::string& path);

// The same, with who it is: "another epd (pid 4711)", "a program that this one cannot ask (...)";
// "": nobody.
std::string WhoListens(const std::string& path);

// A socket that this process has bound, by the device and inode of its file. Whoever removed it and
// bound another one there, since its lock file was gone, keeps that one.
class SocketFile {
 public:
  SocketFile() = default;  // None.
  // Of what lies at `path` now.
  explicit SocketFile(std::string path);
  // Of a listener that this process has from an earlier program, if it is still the one that
  // answers at `path`.
  static SocketFile Adopt(const std::string& path);

  // Whether the file is there and is still this one. The socket must be open: then no other file
  // can have its inode.
  bool IsThere() const;
  // Removes the file if IsThere(). Once; before the socket is closed.
  void Remove();

 private:
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Binds and listens, non-blocking. A stale file there is replaced, a living one never. `mode` is
// the file's: who may connect.
//   ALREADY_EXISTS       somebody listens there; names who
//   FAILED_PRECONDITION  something that is no socket lies there, or binding fails
absl::StatusOr<UniqueFd> ListenAt(const std::string& path, int type, mode_t mode);

// Of clients: SEQPACKET with mode 0666: epd itself checks who connects, and answers with a reason.
absl::StatusOr<UniqueFd> ListenAt(const std::string& path);

}  // namespace epd
