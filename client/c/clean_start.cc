#include "client/c/clean_start.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace epd::client {
namespace {

// By name, or by how the name begins.
constexpr std::string_view kNames[] = {"LD_PRELOAD",     "LD_AUDIT",    "GLIBC_TUNABLES",
                                       "NOTIFY_SOCKET",  "MAINPID",     "INVOCATION_ID",
                                       "JOURNAL_STREAM", "TRACEPARENT", "TRACESTATE"};
constexpr std::string_view kBeginnings[] = {"LD_DEBUG",  "LD_PROFILE", "LD_BIND_", "MALLOC_",
                                            "TCMALLOC_", "WATCHDOG_",  "LISTEN_"};

bool IsLeftOut(std::string_view name) {
  const auto begins = [name](std::string_view beginning) { return name.starts_with(beginning); };
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kBeginnings), std::end(kBeginnings), begins);
}

void Say(int fd, const char* line) {
  [[maybe_unused]] const ssize_t ignored = write(fd, line, std::strlen(line));
}

// Of all CPUs that this machine may have; the kernel leaves out those that a cpuset forbids.
void TakeAllCpus() {
  unsigned long all[1024];  // 65,536 CPUs.
  std::memset(all, 0xff, sizeof all);
  syscall(SYS_sched_setaffinity, 0, sizeof all, all);
  syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0ul);
}

void TakeUsualPriority(int log_fd) {
  sched_param none = {};
  if (sched_getscheduler(0) != SCHED_OTHER && sched_setscheduler(0, SCHED_OTHER, &none) != 0)
    Say(log_fd,
        "epd: its scheduling policy is that of the process that started it: its user may not "
        "change it\n");
  if (getpriority(PRIO_PROCESS, 0) != 0 && setpriority(PRIO_PROCESS, 0, 0) != 0)
    Say(log_fd,
        "epd: its nice value is that of the process that started it: its user may not lower it\n");
  constexpr int kOfProcess = 1;
  syscall(SYS_ioprio_set, kOfProcess, 0, 0);  // By the nice value.
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0 || write(file, "0", 1) != 1)
    Say(log_fd,
        "epd: its oom_score_adj is that of the process that started it: its user may not change "
        "it\n");
  if (file >= 0) close(file);
}

// As high as it goes: `most`, else the hard limit.
bool Raise(int resource, rlim_t most) {
  rlimit limit = {};
  const auto id = static_cast<__rlimit_resource_t>(resource);
  if (getrlimit(id, &limit) != 0) return true;
  const rlimit highest = {most, std::max(most, limit.rlim_max)};
  if (setrlimit(id, &highest) == 0) return true;
  limit.rlim_cur = std::min(most, limit.rlim_max);
  return setrlimit(id, &limit) == 0 && limit.rlim_max >= most;
}

void RaiseLimits(int log_fd) {
  constexpr rlim_t kFiles = 1 << 20;  // The kernel's own fs.nr_open.
  constexpr rlim_t kFewFiles = 4096;
  constexpr rlim_t kStack = 8 << 20;
  const bool space = Raise(RLIMIT_AS, RLIM_INFINITY);
  const bool data = Raise(RLIMIT_DATA, RLIM_INFINITY);
  const bool time = Raise(RLIMIT_CPU, RLIM_INFINITY);
  const bool size = Raise(RLIMIT_FSIZE, RLIM_INFINITY);
  if (!space || !data)
    Say(log_fd,
        "epd: its address space is limited as in the process that started it (ulimit -v, -d)\n");
  if (!time)
    Say(log_fd,
        "epd: its CPU time is limited as in the process that started it (ulimit -t): it is killed "
        "when that is used up\n");
  if (!size)
    Say(log_fd,
        "epd: the size of its files, staging too, is limited as in the process that started it "
        "(ulimit -f)\n");
  for (const int resource :
       {int{RLIMIT_RSS}, int{RLIMIT_NPROC}, int{RLIMIT_MEMLOCK}, int{RLIMIT_SIGPENDING}})
    Raise(resource, RLIM_INFINITY);
  Raise(RLIMIT_NOFILE, kFiles);
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kFewFiles)
    Say(log_fd,
        "epd: few open files are allowed, as in the process that started it (ulimit -Hn): its user "
        "may not raise that\n");
  Raise(RLIMIT_STACK, kStack);
}

}  // namespace

std::vector<std::string> CleanEnvironment(const char* const* environment) {
  std::vector<std::string> clean;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!IsLeftOut(entry.substr(0, entry.find('=')))) clean.emplace_back(entry);
  }
  return clean;
}

void StartClean(int log_fd) {
  TakeAllCpus();
  TakeUsualPriority(log_fd);
  RaiseLimits(log_fd);
  personality(PER_LINUX);
  prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
  constexpr unsigned long kUsualSlackNs = 50'000;
  prctl(PR_SET_TIMERSLACK, kUsualSlackNs, 0, 0, 0);
}

}  // namespace epd::client
