#include "daemon/backend/unique_id_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/backend/nccl_library.h"
#include "daemon/core/unique_fd.h"

extern char** environ;

namespace epd {
namespace {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Its output and its complaints go to one pipe each; it gets no other descriptor of ours.
absl::StatusOr<pid_t> Spawn(const std::string& program, const std::string& nccl_path, int out,
                            int complaints) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const absl::Cleanup destroy = [&] { posix_spawn_file_actions_destroy(&actions); };
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, complaints, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  std::string flag = kUniqueIdFlag + nccl_path;
  std::string name = program;
  char* const arguments[] = {name.data(), flag.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
  if (error == 0) return child;
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot start ", program, " for a unique id: ", std::strerror(error)));
}

// Reads to the end, or as much as anything sensible would say; false when `deadline` came first.
bool ReadAll(int fd, absl::Time deadline, std::string& text) {
  constexpr size_t kEnough = 4096;
  char part[512];
  while (text.size() < kEnough) {
    const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    pollfd wait = {.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&wait, 1, static_cast<int>(left));
    if (ready == 0) return false;
    const ssize_t got = ready < 0 ? -1 : read(fd, part, sizeof part);
    if (got == 0) return true;
    if (got > 0) text.append(part, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) return true;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> MakeUniqueIdInChild(const std::string& program,
                                                const std::string& nccl_path,
                                                absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  absl::StatusOr<Pipe> out = MakePipe();
  if (!out.ok()) return out.status();
  absl::StatusOr<Pipe> complaints = MakePipe();
  if (!complaints.ok()) return complaints.status();
  const absl::StatusOr<pid_t> child =
      Spawn(program, nccl_path, out->write.get(), complaints->write.get());
  if (!child.ok()) return child.status();
  out->write.reset();
  complaints->write.reset();
  std::string id;
  std::string why;
  const bool answered = ReadAll(out->read.get(), deadline, id);
  kill(*child, SIGKILL);  // It has said all it had to say, or too late.
  if (answered && id.size() != kNcclUniqueIdBytes) ReadAll(complaints->read.get(), deadline, why);
  int status = 0;
  while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!answered) {
    return absl::DeadlineExceededError(
        absl::StrCat("ncclGetUniqueId took longer than ", absl::FormatDuration(limit),
                     "; check the network that NCCL_SOCKET_IFNAME names"));
  }
  if (id.size() == kNcclUniqueIdBytes) return id;
  return absl::UnavailableError(why.empty() ? "the process that makes unique ids died" : why);
}

int UniqueIdChildMain(const std::string& nccl_path) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const UniqueFd out(dup(STDOUT_FILENO));
  dup2(STDERR_FILENO, STDOUT_FILENO);  // NCCL_DEBUG prints to standard output.
  const NcclLibrary nccl({nccl_path});
  const absl::StatusOr<std::string> id = nccl.MakeUniqueId();
  if (!id.ok()) {
    std::fprintf(stderr, "%s", std::string(id.status().message()).c_str());
    return 1;
  }
  return write(out.get(), id->data(), id->size()) == static_cast<ssize_t>(id->size()) ? 0 : 1;
}

}  // namespace epd
