#include "client/c/autostart.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "client/c/attach_socket.h"
#include "client/c/clean_start.h"
#include "client/c/epd_client.h"
#include "client/c/trusted_server.h"

namespace epd::client {
namespace {

constexpr std::chrono::milliseconds kPollPause{10};
constexpr std::chrono::milliseconds kReapPause{1};
constexpr const char* kIdleExit = "--idle_exit=5";

bool IsThere(const std::string& path) {
  struct stat stat = {};
  return ::stat(path.c_str(), &stat) == 0 && S_ISREG(stat.st_mode);
}

// Why the kernel would not run the file, or this user should not; "": it is fine.
std::string WhyNot(const std::string& path) {
  if (access(path.c_str(), X_OK) == 0) return WhyNotRun(path);
  struct statvfs mount = {};
  const bool is_noexec = statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0;
  return is_noexec ? "its file system is mounted noexec" : "this user may not execute it";
}

// The folder and its parents that hold this library (or the binary that it is linked into).
std::vector<std::string> FoldersAbove() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&epd_client_version), &info) == 0) return {};
  char real[PATH_MAX];
  if (realpath(info.dli_fname, real) == nullptr) return {};
  std::vector<std::string> folders;
  std::string path = real;
  // <venv>/lib/python3.12/site-packages/epd/jax/x.so lies six folders below <venv>.
  for (int i = 0; i < 7; ++i) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || slash == 0) break;
    path.resize(slash);
    folders.push_back(path);
  }
  return folders;
}

// How long the log is now: what is behind that was written later.
off_t SizeOf(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 ? found.st_size : 0;
}

// The last line that was written behind `from`, for people.
std::string LastLine(const std::string& path, off_t from) {
  constexpr size_t kMostBytes = 1000;
  std::ifstream file(path, std::ios::binary);
  if (SizeOf(path) >= from) file.seekg(from);  // Else it was begun anew.
  std::string text(std::istreambuf_iterator<char>(file), {});
  text.erase(text.find_last_not_of(" \n") + 1);
  text.erase(0, text.rfind('\n') + 1);
  if (text.empty()) return "it wrote nothing";
  return "its last line: " + text.substr(0, kMostBytes);
}

bool Listens(const std::string& path) {
  AttachSocket socket;
  return AttachSocket::Connect(path, Clock::now(), &socket).ok();
}

// What the grandchild needs, made before fork: after it only async-signal-safe calls are allowed.
struct Launch {
  std::vector<std::string> words;
  std::vector<char*> argv;
  std::vector<std::string> environment;
  std::vector<char*> envp;
  int log_fd = -1;
  int report_fd = -1;  // Takes the grandchild's pid, and then errno, if its program cannot be run.
};

constexpr int kReportFd = 3;  // Of the grandchild, until its program runs.

void SayTo(int fd, int number) {
  [[maybe_unused]] const ssize_t written = write(fd, &number, sizeof number);
}

// In the child. Never returns.
[[noreturn]] void BecomeDaemon(const Launch& launch) {
  setsid();
  if (const pid_t pid = fork(); pid != 0) {
    if (pid > 0) SayTo(launch.report_fd, pid);
    _exit(pid < 0 ? 1 : 0);
  }
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(launch.log_fd, STDOUT_FILENO);
  dup2(launch.log_fd, STDERR_FILENO);
  if (launch.report_fd != kReportFd) dup2(launch.report_fd, kReportFd);
  fcntl(kReportFd, F_SETFD, FD_CLOEXEC);
  if (syscall(SYS_close_range, kReportFd + 1u, ~0u, 0u) != 0) {
    for (int fd = kReportFd + 1; fd < 65536; ++fd) close(fd);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  if (chdir("/") != 0) _exit(126);
  StartClean(STDERR_FILENO);
  execve(launch.argv[0], launch.argv.data(), launch.envp.data());
  SayTo(kReportFd, errno);
  _exit(127);
}

// A process that is no child of this one.
class Started {
 public:
  Started() = default;
  // `reports`: the other end of Launch::report_fd; the pid is in it.
  explicit Started(UniqueFd reports) : reports_(std::move(reports)) {
    if (!Read(&pid_)) return;
    pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    is_gone_ = !pidfd_.valid() && errno == ESRCH;
  }

  // Never blocks. False where nobody can tell.
  bool HasEnded() {
    if (pidfd_.valid() && !is_gone_) {
      pollfd poller = {pidfd_.get(), POLLIN, 0};
      is_gone_ = poll(&poller, 1, 0) > 0;
    } else if (pid_ > 0 && !is_gone_) {
      is_gone_ = kill(pid_, 0) != 0 && errno == ESRCH;
    }
    // A first process of a container inherits all orphans.
    if (is_gone_) waitpid(pid_, nullptr, WNOHANG);
    return is_gone_;
  }

  // Why its program could not be run; "": it was.
  std::string NotRun() {
    int error = 0;
    return Read(&error) ? std::strerror(error) : "";
  }

 private:
  bool Read(int* number) { return read(reports_.get(), number, sizeof *number) == sizeof *number; }

  UniqueFd reports_;
  UniqueFd pidfd_;
  pid_t pid_ = -1;
  bool is_gone_ = false;
};

// Takes the middle child, which only forks and exits; one that hangs until `deadline` is killed.
Status Reap(pid_t child, RunningDeadline& deadline) {
  while (true) {
    int status = 0;
    const pid_t reaped = waitpid(child, &status, WNOHANG);
    if (reaped == child) {
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
      return MakeStatus(Code::kUnavailable,
                        "the process that starts the private epd ended with wait status %d",
                        status);
    }
    // The program may reap every child itself (SIGCHLD ignored, or a handler that waits for all).
    if (reaped < 0 && errno != EINTR) return {};
    if (deadline.Passed(Clock::now())) {
      kill(child, SIGKILL);
      return MakeStatus(Code::kUnavailable, "fork did not come back in time for a private epd");
    }
    std::this_thread::sleep_for(kReapPause);
  }
}

Status Spawn(const std::string& binary, PrivateDaemon& daemon, const std::string& log_path,
             Started* started) {
  Launch launch;
  launch.words = {binary, "--socket=" + daemon.folder.socket_path(), kIdleExit};
  for (std::string& word : launch.words) launch.argv.push_back(word.data());
  launch.argv.push_back(nullptr);
  launch.environment = CleanEnvironment(environ);
  for (std::string& entry : launch.environment) launch.envp.push_back(entry.data());
  launch.envp.push_back(nullptr);
  UniqueFd log(
      open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log.valid()) return OfFolder(daemon.folder.Cannot("open " + log_path, errno));
  launch.log_fd = log.get();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return MakeStatus(Code::kResourceExhausted, "pipe: %s", std::strerror(errno));
  UniqueFd reports(ends[0]);
  const UniqueFd report(ends[1]);
  launch.report_fd = report.get();
  const pid_t child = fork();
  if (child < 0) return MakeStatus(Code::kUnavailable, "fork: %s", std::strerror(errno));
  if (child == 0) BecomeDaemon(launch);
  if (Status s = Reap(child, daemon.deadline); !s.ok()) return s;
  *started = Started(std::move(reports));
  return {};
}

// Returns once somebody listens, or `started` has ended.
Status AwaitListening(PrivateDaemon& daemon, const std::string& binary, const std::string& log_path,
                      off_t log_begins, Started started) {
  while (true) {
    const bool ended =
        started.HasEnded();  // Whoever has listened before its end did so before this.
    if (Listens(daemon.folder.socket_path())) return {};
    if (ended) {
      std::string why = started.NotRun();
      why = why.empty() ? "was started as this user's private epd, and has ended; " +
                              LastLine(log_path, log_begins)
                        : "cannot be run as this user's private epd: " + why;
      return MakeStatus(Code::kFailedPrecondition, "%s %s (log: %s) [EPD-1406]", binary.c_str(),
                        why.c_str(), log_path.c_str());
    }
    if (daemon.deadline.Passed(Clock::now())) {
      return MakeStatus(Code::kUnavailable,
                        "%s was started and does not listen on %s in time; %s (log: %s)",
                        binary.c_str(), daemon.folder.socket_path().c_str(),
                        LastLine(log_path, log_begins).c_str(), log_path.c_str());
    }
    std::this_thread::sleep_for(kPollPause);
  }
}

}  // namespace

std::string FindDaemon(const std::string& given, std::string* tried) {
  std::vector<std::string> candidates;
  const char* variable = secure_getenv("EPD_PROGRAM");
  if (!given.empty()) {
    candidates = {given};
  } else if (variable != nullptr && *variable != '\0') {
    candidates = {variable};
  } else {
    for (const std::string& folder : FoldersAbove()) {
      candidates.push_back(folder + "/epd");
      candidates.push_back(folder + "/bin/epd");
    }
  }
  for (const std::string& candidate : candidates) {
    const bool is_there = IsThere(candidate);
    const std::string distrust = is_there ? WhyNot(candidate) : "";
    if (is_there && distrust.empty()) return candidate;
    *tried += (tried->empty() ? "" : ", ") + candidate;
    if (is_there) *tried += " (not run: " + distrust + ")";
  }
  return "";
}

Status OfFolder(const PrivateFolder::Problem& problem, const std::string& looked) {
  if (problem.ok()) return {};
  return {problem.code,
          problem.text + ", or set EPD_SOCKET to a running epd's socket" + looked + " [EPD-1404]"};
}

Status StartPrivateDaemon(PrivateDaemon& daemon) {
  if (Status s = OfFolder(daemon.folder.Make()); !s.ok()) return s;
  const std::string& folder = daemon.folder.path();
  const std::string socket_path = daemon.folder.socket_path();
  // Whoever holds the lock starts it; the others then find it listening.
  const std::string lock_path = folder + "/start.lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return OfFolder(daemon.folder.Cannot("open " + lock_path, errno));
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (const int error = errno; error != EWOULDBLOCK && error != EINTR) {
      return MakeStatus(
          Code::kFailedPrecondition,
          "set XDG_RUNTIME_DIR to a folder on a local file system, or EPD_SOCKET to a "
          "running epd's socket: cannot lock %s: %s; the file system there "
          "has no locks (flock)",
          lock_path.c_str(), std::strerror(error));
    }
    if (Listens(socket_path)) return {};
    if (daemon.deadline.Passed(Clock::now())) {
      return MakeStatus(Code::kUnavailable, "another process holds %s and starts no epd",
                        lock_path.c_str());
    }
    std::this_thread::sleep_for(kPollPause);
  }
  if (Listens(socket_path)) return {};
  std::string tried;
  const std::string binary = FindDaemon(daemon.daemon_path, &tried);
  if (binary.empty()) {
    return MakeStatus(
        Code::kFailedPrecondition,
        "set EPD_PROGRAM to an epd that belongs to this user or root and that others cannot write "
        "to, or EPD_SOCKET to a running epd's socket: no epd runs, and none was found to start a "
        "private one; tried %s",
        tried.c_str());
  }
  const std::string log_path = folder + "/epd.log";
  const off_t log_begins = SizeOf(log_path);
  std::fprintf(stderr,
               "epd: no daemon found, starting a private one: %s --socket=%s %s (log: %s)\n",
               binary.c_str(), socket_path.c_str(), kIdleExit, log_path.c_str());
  Started started;
  if (Status s = Spawn(binary, daemon, log_path, &started); !s.ok()) return s;
  return AwaitListening(daemon, binary, log_path, log_begins, std::move(started));
}

}  // namespace epd::client
