// Goal: a private daemon has what its user may have, not what the process happened to have that started it.
#include "client/c/clean_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

namespace epd::client {
namespace {

using testing::ElementsAre;

TEST(CleanStartTest, TheEnvironmentIsWithoutWhatIsMeantForTheProgram) {
  const char* const environment[] = {"PATH=/bin",
                                     "LD_PRELOAD=/lib/libjemalloc.so",
                                     "LD_LIBRARY_PATH=/opt/nccl",
                                     "LD_AUDIT=x",
                                     "LD_DEBUG=all",
                                     "LD_DEBUG_OUTPUT=/tmp/x",
                                     "LD_BIND_NOW=1",
                                     "GLIBC_TUNABLES=glibc.malloc.arena_max=1",
                                     "MALLOC_ARENA_MAX=1",
                                     "MALLOC_CONF=a",
                                     "MALLOCX=kept",
                                     "NOTIFY_SOCKET=/run/x",
                                     "WATCHDOG_USEC=1",
                                     "WATCHDOG_PID=1",
                                     "LISTEN_FDS=1",
                                     "TRACEPARENT=00-1",
                                     "EPD_DUMPABLE=1",
                                     "SLURM_JOB_NODELIST=n[1-2]",
                                     nullptr};
  EXPECT_THAT(CleanEnvironment(environment),
              ElementsAre("PATH=/bin", "LD_LIBRARY_PATH=/opt/nccl", "MALLOCX=kept",
                          "EPD_DUMPABLE=1", "SLURM_JOB_NODELIST=n[1-2]"));
}

// The exit status of `body` in a child.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string OomScore() {
  std::ifstream file("/proc/self/oom_score_adj");
  std::string text;
  file >> text;
  return text;
}

// What a rank may have done to itself, whoever it is.
void Spoil() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);
  std::ofstream("/proc/self/oom_score_adj") << "300";
  for (const auto resource : {RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA}) {
    rlimit limit = {};
    getrlimit(resource, &limit);
    limit.rlim_cur = resource == RLIMIT_NOFILE ? 200 : rlim_t{1} << 40;
    setrlimit(resource, &limit);
  }
  sched_param none = {};
  sched_setscheduler(0, SCHED_BATCH, &none);
  prctl(PR_SET_TIMERSLACK, 5'000'000ul, 0, 0, 0);
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  constexpr int kOfProcess = 1, kIdleClass = 3 << 13;
  syscall(SYS_ioprio_set, kOfProcess, 0, kIdleClass);
}

TEST(CleanStartTest, WhatItsUserMayChangeIsAsUsual) {
  EXPECT_EQ(InChild([] {
              cpu_set_t before, after;
              sched_getaffinity(0, sizeof before, &before);
              Spoil();
              StartClean(STDERR_FILENO);
              sched_getaffinity(0, sizeof after, &after);
              if (CPU_COUNT(&after) < CPU_COUNT(&before)) return 1;
              if (OomScore() != "0") return 2;
              for (const auto resource :
                   {RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_DATA}) {
                rlimit limit = {};
                getrlimit(resource, &limit);
                const bool high = resource == RLIMIT_NOFILE ? limit.rlim_cur > 200
                                                            : limit.rlim_cur == limit.rlim_max;
                if (!high) return 3;
              }
              if (sched_getscheduler(0) != SCHED_OTHER) return 4;
              if (prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0) > 100'000) return 5;
              if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) != 0) return 6;
              if ((syscall(SYS_ioprio_get, 1, 0) >> 13) == 3) return 7;
              return 0;
            }),
            0);
}

TEST(CleanStartTest, RootsNiceValueIsAsUsualToo) {
  const bool may = InChild([] { return setpriority(PRIO_PROCESS, 0, -1) == 0 ? 0 : 1; }) == 0;
  if (!may) GTEST_SKIP() << "needs root, outside of a user namespace";
  EXPECT_EQ(InChild([] {
              setpriority(PRIO_PROCESS, 0, 15);
              StartClean(STDERR_FILENO);
              return getpriority(PRIO_PROCESS, 0) == 0 ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace epd::client
