#include "proto/machine/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <vector>

#include "proto/machine/cgroup_limits.h"

namespace epd {
namespace {

constexpr uint64_t kKib = 1024;
// Eight times what is usual; address space and what may be committed are used up sooner than threads.
constexpr uint64_t kLargeStackKib = 64 * kKib;

bool HasHandler(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) != 0) return false;
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

// A new thread has the mask of the one that makes it.
class MaskForThread {
 public:
  explicit MaskForThread(ThreadSignals signals) {
    sigset_t mask;
    if (signals == ThreadSignals::kAsCaller) {
      pthread_sigmask(SIG_SETMASK, nullptr, &before_);
      return;
    }
    sigfillset(&mask);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
      sigdelset(&mask, own);
    if (HasHandler(SIGUSR2)) sigdelset(&mask, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &mask, &before_);
  }
  ~MaskForThread() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  MaskForThread(const MaskForThread&) = delete;
  MaskForThread& operator=(const MaskForThread&) = delete;

 private:
  sigset_t before_;
};

// The address space that is in use, in KiB: the first number of statm, in pages.
uint64_t AddressSpaceKib() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / kKib;
}

// Of each new thread: ulimit -s at the program's start, unless the program has set another. 0: it is not known.
uint64_t StackKib() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes / kKib;
}

void AddText(std::string& all, const std::string& text) {
  if (!all.empty()) all += "; ";
  all += text;
}

}  // namespace

int StartThreadOf(const ThreadKind& kind, std::function<void()> body, Thread* thread) noexcept {
  const MaskForThread mask(kind.signals);
  try {
    thread->thread_ = std::thread([name = kind.name, body = std::move(body)]() mutable {
      if (*name != '\0') pthread_setname_np(pthread_self(), name);
      body();
      body = nullptr;  // What it holds ends here, and not with whoever joins.
    });
    return 0;
  } catch (const std::system_error& error) {
    return error.code().value() == 0 ? EAGAIN : error.code().value();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

Thread StartThreadOrEnd(const char* program, const ThreadKind& kind, std::function<void()> body) {
  Thread thread;
  const int error = StartThread(kind, std::move(body), &thread);
  if (error == 0) return thread;
  std::fprintf(stderr, "%s: %s\n", program, WhyNoThread(kind.name, error).c_str());
  std::fflush(stderr);
  _exit(1);
}

std::string AddressSpaceLimit() {
  rlimit space = {};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return "";
  return "ulimit -v " + std::to_string(space.rlim_cur / kKib) + " KiB, " +
         std::to_string(AddressSpaceKib()) + " KiB in use";
}

std::string ThreadLimits() {
  std::string all;
  rlimit processes = {};
  if (getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY)
    AddText(all, "ulimit -u " + std::to_string(processes.rlim_cur));
  if (const auto pids = LeastRoom(PidsLimits(&ReadMachineFile)); pids.has_value()) {
    const size_t slash = pids->file.rfind('/');
    AddText(all, "pids.max " + std::to_string(pids->limit) + " of " + pids->file.substr(0, slash) +
                     ", " + std::to_string(pids->used) + " in use");
  }
  if (const std::string space = AddressSpaceLimit(); !space.empty()) AddText(all, space);
  if (const uint64_t stack = StackKib(); stack > kLargeStackKib)
    AddText(all, "each thread's stack is " + std::to_string(stack) + " KiB, lower ulimit -s");
  return all;
}

std::string WhyNoThread(const char* name, int error) {
  const std::string limits = ThreadLimits();
  return std::string("no thread '") + name + "': " + std::strerror(error) +
         "; raise the limit of threads, processes or memory" +
         (limits.empty() ? "" : " (" + limits + ")");
}

int CountThreads(int wanted) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::vector<Thread> threads(static_cast<size_t>(wanted));
  int count = 0;
  const auto wait = [&] {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return over; });
  };
  while (count < wanted && StartThread({}, wait, &threads[static_cast<size_t>(count)]) == 0)
    ++count;
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  changed.notify_all();
  for (Thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  return count;
}

}  // namespace epd
