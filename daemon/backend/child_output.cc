#include "daemon/backend/child_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/core/unique_fd.h"

extern char** environ;

namespace epd {
namespace {

constexpr size_t kEnough = size_t{1} << 20;

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

absl::StatusOr<pid_t> Spawn(const std::string& program, const std::vector<std::string>& arguments,
                            int out, int complaints) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const absl::Cleanup destroy = [&] { posix_spawn_file_actions_destroy(&actions); };
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, complaints, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  std::vector<char*> words = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) {
    words.push_back(const_cast<char*>(argument.c_str()));
  }
  words.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, words.data(), environ);
  if (error == 0) return child;
  const std::string why = absl::StrCat("cannot start ", program, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(why);
  return absl::ResourceExhaustedError(why);
}

// Takes what is there; closes `fd` at its end, or once there is too much.
void Drain(UniqueFd& fd, std::string& text) {
  char part[4096];
  const ssize_t got = read(fd.get(), part, sizeof part);
  if (got < 0 && errno == EINTR) return;
  if (got > 0) text.append(part, static_cast<size_t>(got));
  if (got <= 0 || text.size() >= kEnough) fd.reset();
}

// False: the deadline came first.
bool ReadBoth(UniqueFd out, UniqueFd complaints, absl::Time deadline, ChildOutput& result) {
  while (out.valid() || complaints.valid()) {
    const int64_t left = std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()));
    pollfd watched[2] = {{.fd = out.get(), .events = POLLIN, .revents = 0},
                         {.fd = complaints.get(), .events = POLLIN, .revents = 0}};
    const int ready = poll(watched, 2, static_cast<int>(left));
    if (ready == 0) return false;
    if (watched[0].revents != 0) Drain(out, result.output);
    if (watched[1].revents != 0) Drain(complaints, result.complaints);
  }
  return true;
}

std::string EndOf(int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  if (WIFEXITED(status)) return absl::StrCat("exited with status ", WEXITSTATUS(status));
  return absl::StrCat("killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                      ")");
}

}  // namespace

absl::StatusOr<ChildOutput> RunChild(const std::string& program,
                                     const std::vector<std::string>& arguments,
                                     absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  absl::StatusOr<Pipe> out = MakePipe();
  if (!out.ok()) return out.status();
  absl::StatusOr<Pipe> complaints = MakePipe();
  if (!complaints.ok()) return complaints.status();
  const absl::StatusOr<pid_t> child =
      Spawn(program, arguments, out->write.get(), complaints->write.get());
  if (!child.ok()) return child.status();
  out->write.reset();
  complaints->write.reset();
  ChildOutput result;
  result.late = !ReadBoth(std::move(out->read), std::move(complaints->read), deadline, result);
  if (result.late) kill(*child, SIGKILL);
  int status = 0;
  while (waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  result.end = result.late ? absl::StrCat("did not end within ", absl::FormatDuration(limit))
                           : EndOf(status);
  return result;
}

}  // namespace epd
