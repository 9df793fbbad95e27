#include "daemon/process/spawn.h"

#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/core/system_call_error.h"
#include "proto/failpoint/failpoint.h"
#include "proto/machine/thread.h"

namespace epd {

absl::StatusOr<Child> Spawn(const std::string& path, const std::vector<std::string>& args, int fd3,
                            const std::string& name) {
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("cannot run '", path, "': ", std::strerror(errno),
                                            "; set --worker to the epd-worker binary"));
  }
  std::vector<char*> argv = {const_cast<char*>(name.empty() ? path.c_str() : name.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fd3, 3);
  posix_spawn_file_actions_addclosefrom_np(&actions, 4);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  sigdelset(&all,
            SIGPIPE);  // These stay ignored: they are errors of a call, not the end of a process.
  sigdelset(&all, SIGXFSZ);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  Child child;
  const int error =
      posix_spawn(&child.pid, path.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    const std::string limits = ThreadLimits();
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start '", path, "': ", std::strerror(error),
                     "; raise the limit of processes, threads or memory",
                     limits.empty() ? "" : absl::StrCat(" (now: ", limits, ")")));
  }
  child.pidfd.reset(EPD_FAILPOINT_CALL("epd.worker.no_descriptor", EMFILE,
                                       static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0))));
  if (!child.pidfd.valid()) {
    const int error = errno;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
    return SystemCallError("pidfd_open of the new process", error,
                           "raise the limit on descriptors (ulimit -n, LimitNOFILE)");
  }
  return child;
}

absl::Status CheckPidfds() {
  const UniqueFd own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (own.valid()) return absl::OkStatus();
  return SystemCallError("pidfd_open of epd itself", errno,
                         "raise the limit on descriptors (ulimit -n, LimitNOFILE)");
}

std::string Reap(const Child& child) {
  int status = 0;
  const pid_t got = waitpid(child.pid, &status, WNOHANG);
  if (got == 0) return "";
  if (got < 0) return absl::StrCat("ended, reaped by somebody else: ", std::strerror(errno));
  if (WIFEXITED(status)) return absl::StrCat("exited with status ", WEXITSTATUS(status));
  return absl::StrCat("killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                      ")");
}

}  // namespace epd
