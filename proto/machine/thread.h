// The one way to make a thread: it says when there is none to be had, and throws nothing.
//
//   Thread thread;
//   if (const int error = StartThread({"epd-traces"}, [this] { Run(); }, &thread); error != 0)
//     return absl::ResourceExhaustedError(WhyNoThread("epd-traces", error));
//
// A rule of the repository (tests/lint/layering.py) refuses std::thread everywhere else.
#pragma once

#include <cerrno>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>

namespace epd {

// Which signals a new thread takes. Those that a fault of its own raises (SIGBUS, SIGSEGV, ...) it always takes, and
// SIGUSR2 where that has a handler when the thread is made: on it each thread of a process writes its stack (proto/stacks).
enum class ThreadSignals {
  kAsCaller,
  kNone,
};

struct ThreadKind {
  const char* name = "";  // As `ps` and debuggers show it; at most 15 characters.
  ThreadSignals signals = ThreadSignals::kAsCaller;
};

// A thread that runs, or none. Like std::thread it is to be joined or detached before its end.
class Thread {
 public:
  Thread() = default;

  bool joinable() const { return thread_.joinable(); }
  void join() { thread_.join(); }
  void detach() { thread_.detach(); }

 private:
  friend int StartThreadOf(const ThreadKind& kind, std::function<void()> body,
                           Thread* thread) noexcept;
  std::thread thread_;
};

// Starts `body`. 0, or an errno (EAGAIN: a limit of threads or of memory; ENOMEM), and then nothing runs and `thread` is as
// it was. The caller's signal mask is as before in both cases.
int StartThreadOf(const ThreadKind& kind, std::function<void()> body, Thread* thread) noexcept;

template <typename Body>
int StartThread(const ThreadKind& kind, Body&& body, Thread* thread) noexcept {
  try {
    return StartThreadOf(kind, std::function<void()>(std::forward<Body>(body)), thread);
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

// Likewise, of one that nobody joins.
template <typename Body>
int StartDetached(const ThreadKind& kind, Body&& body) noexcept {
  Thread thread;
  const int error = StartThread(kind, std::forward<Body>(body), &thread);
  if (error == 0) thread.detach();
  return error;
}

// For a program's start, where it cannot go on without: writes one line with WhyNoThread to standard error, as `program`, and
// ends the process with status 1.
Thread StartThreadOrEnd(const char* program, const ThreadKind& kind, std::function<void()> body);

// "no thread 'epd-traces': Resource temporarily unavailable; ..." with the limits that count: of the user (ulimit -u), of the
// cgroup and of the groups above it (pids.max), of the address space (ulimit -v).
std::string WhyNoThread(const char* name, int error);

// The same limits alone: "ulimit -u 4096; pids.max 12 of /sys/fs/cgroup/pids/job, 12 in use; ulimit -v 1048576 KiB, 900000 KiB in
// use". What is without limit is left out.
std::string ThreadLimits();

// "ulimit -v 1048576 KiB, 900000 KiB in use"; "": the address space is not limited.
std::string AddressSpaceLimit();

// As many threads as can be had at once, up to `wanted`; all have ended when it returns.
int CountThreads(int wanted);

}  // namespace epd
