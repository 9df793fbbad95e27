// The node's Unix socket for gRPC, and who calls on it.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/attach/socket_file.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {

// gRPC keeps the credentials of a Unix peer to itself, so connections are accepted here: the kernel says who opened each,
// and gRPC names it "fd:N" in its calls.
class UnixCallers {
 public:
  // `loop` outlives this.
  explicit UnixCallers(EventLoop& loop) : loop_(loop) {}
  ~UnixCallers() { Stop(); }

  // Binds and listens at `path`, mode 0600; again: in place of the first one, whose file is gone. Errors as ListenAt.
  absl::Status Listen(const std::string& path);
  // Whether the file is there and is still this one's.
  bool has_file() const { return file_.IsThere(); }
  // Hands connections to `server` from now on. Errors as EventLoop::Add.
  absl::Status Serve(grpc::Server& server);
  // Accepts again after descriptors had run out; call now and then. Control thread.
  void Resume();
  // Takes no more, and removes the socket's file, if it is still this one's. Before the server ends.
  void Stop();

  // Of a call's context, for the log: "uid=0 pid=4711" on this socket, else "peer=ipv4:10.0.0.2:4711", with TLS and
  // " certificate=NAME". Any thread.
  std::string Describe(const grpc::ServerContextBase& context) const;
  // The user who calls on this socket; nullopt: the call came in elsewhere. Any thread.
  std::optional<uid_t> UidOf(const grpc::ServerContextBase& context) const;

 private:
  struct Caller {
    pid_t pid = 0;
    uid_t uid = 0;
  };

  void Accept(grpc::Server& server);

  EventLoop& loop_;
  UniqueFd listener_;
  SocketFile file_;
  bool rests_ = false;  // It would be readable all the time.
  mutable absl::Mutex mutex_;
  std::map<std::string, Caller> callers_
      ABSL_GUARDED_BY(mutex_);  // The last of each descriptor, by gRPC's name.
};

}  // namespace epd
