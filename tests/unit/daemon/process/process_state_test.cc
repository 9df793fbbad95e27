// Goal: a process that waits in the kernel is told from one that sleeps, is stopped, or is not there.
#include "daemon/process/process_state.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace epd {
namespace {

// In a process of its own until this one is gone.
class Running {
 public:
  explicit Running(void (*act)()) : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    act();
    _exit(0);
  }
  ~Running() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  int pid() const { return pid_; }
  // Whether it is found to wait, before a time in which each of them has begun to do what it does.
  bool Waits() const {
    for (int i = 0; i < 50; ++i) {
      if (WaitsInKernel(pid_)) return true;
      poll(nullptr, 0, 10);
    }
    return false;
  }

 private:
  const int pid_;
};

TEST(ProcessStateTest, WhoSleepsOrIsStoppedOrIsGoneDoesNotWaitInTheKernel) {
  EXPECT_FALSE(WaitsInKernel(getpid()));
  EXPECT_FALSE(Running([] { pause(); }).Waits());
  EXPECT_FALSE(Running([] { raise(SIGSTOP); }).Waits());
  int gone = 0;
  {
    const Running one([] { pause(); });
    gone = one.pid();
  }
  EXPECT_FALSE(WaitsInKernel(gone));
}

// A name may have in it what looks like a state.
TEST(ProcessStateTest, WhoWaitsUninterruptiblyDoesWhateverItsName) {
  const Running waits([] {
    prctl(PR_SET_NAME, "a) S (b");
    // Until the child of this one has ended.
    if (syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr) == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pause();
      _exit(0);
    }
  });
  EXPECT_TRUE(waits.Waits());
}

}  // namespace
}  // namespace epd
