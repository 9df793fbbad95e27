#include "client/c/autostart.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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

bool Executable(const std::string& path) {
  struct stat stat = {};
  return ::stat(path.c_str(), &stat) == 0 && S_ISREG(stat.st_mode) &&
         access(path.c_str(), X_OK) == 0;
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

Status PrepareFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return MakeStatus(Code::kUnavailable, "cannot make %s for a private epd: %s", folder.c_str(),
                      std::strerror(errno));
  }
  return CheckPrivateFolder(folder);
}

std::string LastLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() > 600) text.erase(0, text.size() - 600);
  return text.empty() ? "(empty)" : text;
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
};

// In the child. Never returns.
[[noreturn]] void BecomeDaemon(const Launch& launch) {
  setsid();
  if (const pid_t pid = fork(); pid != 0) _exit(pid < 0 ? 1 : 0);
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(launch.log_fd, STDOUT_FILENO);
  dup2(launch.log_fd, STDERR_FILENO);
  if (syscall(SYS_close_range, 3u, ~0u, 0u) != 0) {
    for (int fd = 3; fd < 65536; ++fd) close(fd);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  if (chdir("/") != 0) _exit(126);
  StartClean(STDERR_FILENO);
  execve(launch.argv[0], launch.argv.data(), launch.envp.data());
  _exit(127);
}

// Takes the middle child, which only forks and exits; one that hangs until `deadline` is killed.
Status Reap(pid_t child, Clock::time_point deadline) {
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
    if (Clock::now() >= deadline) {
      kill(child, SIGKILL);
      return MakeStatus(Code::kUnavailable, "fork did not come back in time for a private epd");
    }
    std::this_thread::sleep_for(kReapPause);
  }
}

Status Spawn(const std::string& binary, const PrivateDaemon& daemon, const std::string& log_path) {
  Launch launch;
  launch.words = {binary, "--socket=" + daemon.socket_path, kIdleExit};
  for (std::string& word : launch.words) launch.argv.push_back(word.data());
  launch.argv.push_back(nullptr);
  launch.environment = CleanEnvironment(environ);
  for (std::string& entry : launch.environment) launch.envp.push_back(entry.data());
  launch.envp.push_back(nullptr);
  UniqueFd log(
      open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log.valid()) {
    return MakeStatus(Code::kUnavailable, "cannot open %s: %s", log_path.c_str(),
                      std::strerror(errno));
  }
  launch.log_fd = log.get();
  const pid_t child = fork();
  if (child < 0) return MakeStatus(Code::kUnavailable, "fork: %s", std::strerror(errno));
  if (child == 0) BecomeDaemon(launch);
  return Reap(child, daemon.deadline);
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
    const bool is_there = Executable(candidate);
    const std::string distrust = is_there ? WhyNotRun(candidate) : "";
    if (is_there && distrust.empty()) return candidate;
    *tried += (tried->empty() ? "" : ", ") + candidate;
    if (is_there) *tried += " (not run: " + distrust + ")";
  }
  return "";
}

Status StartPrivateDaemon(const PrivateDaemon& daemon) {
  if (Status s = PrepareFolder(daemon.folder); !s.ok()) return s;
  // Whoever holds the lock starts it; the others then find it listening.
  UniqueFd lock(open((daemon.folder + "/start.lock").c_str(),
                     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) {
    return MakeStatus(Code::kUnavailable, "cannot open %s/start.lock: %s", daemon.folder.c_str(),
                      std::strerror(errno));
  }
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (const int error = errno; error != EWOULDBLOCK && error != EINTR) {
      return MakeStatus(
          Code::kFailedPrecondition,
          "set XDG_RUNTIME_DIR to a folder on a local file system, or EPD_SOCKET to a "
          "running epd's socket: cannot lock %s/start.lock: %s; the file system there "
          "has no locks (flock)",
          daemon.folder.c_str(), std::strerror(error));
    }
    if (Listens(daemon.socket_path)) return {};
    if (Clock::now() >= daemon.deadline) {
      return MakeStatus(Code::kUnavailable, "another process holds %s/start.lock and starts no epd",
                        daemon.folder.c_str());
    }
    std::this_thread::sleep_for(kPollPause);
  }
  if (Listens(daemon.socket_path)) return {};
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
  const std::string log_path = daemon.folder + "/epd.log";
  std::fprintf(stderr,
               "epd: no daemon found, starting a private one: %s --socket=%s %s (log: %s)\n",
               binary.c_str(), daemon.socket_path.c_str(), kIdleExit, log_path.c_str());
  if (Status s = Spawn(binary, daemon, log_path); !s.ok()) return s;
  while (!Listens(daemon.socket_path)) {
    if (Clock::now() >= daemon.deadline) {
      return MakeStatus(Code::kUnavailable,
                        "%s was started and does not listen on %s in time; its log %s ends: %s",
                        binary.c_str(), daemon.socket_path.c_str(), log_path.c_str(),
                        LastLines(log_path).c_str());
    }
    std::this_thread::sleep_for(kPollPause);
  }
  return {};
}

}  // namespace epd::client
