// Goal: a thread that cannot be had is an error, which names the limits, and leaves the caller as it was.
#include "proto/machine/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "tests/fakes/failing_threads.h"

namespace epd {
namespace {

using epd::testing::g_threads_left;
using ::testing::HasSubstr;
using ::testing::Not;

sigset_t Mask() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

class ThreadTest : public ::testing::Test {
 protected:
  ~ThreadTest() override { g_threads_left = -1; }
};

TEST_F(ThreadTest, ItRunsUnderItsNameAndTakesNoSignalsButThoseOfFaults) {
  std::string name(16, '\0');
  sigset_t mask;
  Thread thread;
  ASSERT_EQ(StartThread(
                {"epd-test", ThreadSignals::kNone},
                [&] {
                  pthread_getname_np(pthread_self(), name.data(), name.size());
                  mask = Mask();
                },
                &thread),
            0);
  thread.join();
  EXPECT_STREQ(name.c_str(), "epd-test");
  EXPECT_EQ(sigismember(&mask, SIGTERM), 1);
  EXPECT_EQ(sigismember(&mask, SIGUSR2), 1);
  EXPECT_EQ(sigismember(&mask, SIGBUS), 0);
  const sigset_t own = Mask();
  EXPECT_EQ(sigismember(&own, SIGTERM), 0) << "the caller's mask is as before";
}

// Or a process that shows its threads' stacks would never be whole.
TEST_F(ThreadTest, OneThatTakesNoSignalsTakesTheOneOnWhichStacksAreWritten) {
  static std::atomic<pid_t> taken_by = 0;
  struct sigaction handled = {};
  struct sigaction before = {};
  handled.sa_handler = [](int) { taken_by = gettid(); };
  ASSERT_EQ(sigaction(SIGUSR2, &handled, &before), 0);
  pid_t tid = 0;
  Thread thread;
  ASSERT_EQ(StartThread(
                {"epd-test", ThreadSignals::kNone},
                [&] {
                  tid = gettid();
                  raise(SIGUSR2);
                },
                &thread),
            0);
  thread.join();
  sigaction(SIGUSR2, &before, nullptr);
  EXPECT_EQ(taken_by.load(), tid);
}

TEST_F(ThreadTest, WhereNoneCanBeHadTheCallerIsAsBefore) {
  g_threads_left = 0;
  for (const ThreadSignals signals : {ThreadSignals::kAsCaller, ThreadSignals::kNone}) {
    Thread thread;
    bool ran = false;
    EXPECT_EQ(StartThread(
                  {"epd-test", signals}, [&] { ran = true; }, &thread),
              EAGAIN);
    EXPECT_FALSE(thread.joinable());
    EXPECT_FALSE(ran);
    EXPECT_EQ(StartDetached({"epd-test", signals}, [] {}), EAGAIN);
    const sigset_t mask = Mask();
    for (const int signal : {SIGTERM, SIGINT, SIGUSR2})
      EXPECT_EQ(sigismember(&mask, signal), 0) << "the mask is restored";
  }
}

TEST_F(ThreadTest, TheErrorNamesTheLimits) {
  rlimit space = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &space), 0);
  const rlimit limited = {rlim_t{1} << 40, space.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  EXPECT_THAT(WhyNoThread("epd-test", EAGAIN),
              HasSubstr("no thread 'epd-test': Resource temporarily unavailable"));
  EXPECT_THAT(WhyNoThread("epd-test", EAGAIN), HasSubstr("ulimit -v 1073741824 KiB, "));
  setrlimit(RLIMIT_AS, &space);
}

TEST_F(ThreadTest, ItIsCountedHowManyCanBeHadAtOnce) {
  EXPECT_EQ(CountThreads(5), 5);
  g_threads_left = 3;
  EXPECT_EQ(CountThreads(5), 3);
  g_threads_left = 0;
  EXPECT_EQ(CountThreads(5), 0);
}

// With ulimit -s of many GiB a thread fails where there is room for thousands.
TEST_F(ThreadTest, AStackThatIsTooLargeIsNamed) {
  EXPECT_THAT(ThreadLimits(), Not(HasSubstr("ulimit -s")));
  pthread_attr_t before;
  pthread_attr_t large;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_getattr_default_np(&large), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&large, size_t{1} << 36), 0);
  ASSERT_EQ(pthread_setattr_default_np(&large), 0);
  EXPECT_THAT(WhyNoThread("epd-test", EAGAIN),
              HasSubstr("each thread's stack is 67108864 KiB, lower ulimit -s"));
  pthread_setattr_default_np(&before);
}

}  // namespace
}  // namespace epd
