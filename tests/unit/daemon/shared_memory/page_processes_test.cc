// Goal: pages are made and given back by a process of each user, and nobody waits for another user's, whatever it waits for or dies of.
#include "daemon/shared_memory/page_processes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/core/unique_fd.h"
#include "daemon/shared_memory/page_process.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kProgram[] = "tests/unit/daemon/shared_memory/page_process_main";
constexpr uint64_t kPage = 4096;

UniqueFd Memfd() {
  UniqueFd fd(memfd_create("pages", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), 1 << 20), 0);
  return fd;
}

uint64_t NumPages(const UniqueFd& fd) {
  struct stat facts = {};
  fstat(fd.get(), &facts);
  return static_cast<uint64_t>(facts.st_blocks) * 512 / kPage;
}

std::set<int> Children() {
  std::ifstream file("/proc/self/task/" + std::to_string(gettid()) + "/children");
  std::set<int> pids;
  for (int pid = 0; file >> pid;) pids.insert(pid);
  return pids;
}

class PageProcessesTest : public testing::Test {
 protected:
  explicit PageProcessesTest(std::string program = kProgram) : processes_(std::move(program)) {
    EXPECT_TRUE(processes_.Start().ok());
  }
  void TearDown() override {
    processes_.End(absl::Seconds(10));
    EXPECT_EQ(Children(), std::set<int>());
  }
  void Make(uint32_t uid, uint64_t id, const UniqueFd& fd, uint64_t num_pages) {
    processes_.Add(uid, {id, PageAction::kMake, {{fd.get(), 0, num_pages * kPage}}}, now_);
  }
  // The ids of the next that are done; fails after 10 s.
  std::vector<uint64_t> Await() {
    for (int ms = 0; ms < 10'000; ++ms) {
      std::vector<uint64_t> ids;
      for (const PageProcesses::Done& done : processes_.TakeDone(now_)) {
        EXPECT_EQ(done.error, 0);
        ids.push_back(done.id);
      }
      if (!ids.empty()) return ids;
      absl::SleepFor(absl::Milliseconds(1));
    }
    ADD_FAILURE() << "nothing is done";
    return {};
  }
  std::vector<std::string> Warnings() {
    std::vector<std::string> texts;
    for (const PageProcesses::Warning& warning : processes_.TakeWarnings())
      texts.push_back(warning.text);
    return texts;
  }
  // Starts the process of `uid`.
  int ProcessOf(uint32_t uid) {
    const std::set<int> before = Children();
    processes_.Hold(uid);
    for (const int pid : Children()) {
      if (!before.contains(pid)) return pid;
    }
    ADD_FAILURE() << "no process was started";
    return 0;
  }

  PageProcesses processes_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(PageProcessesTest, PagesAreMadeAndGivenBackInOrder) {
  const UniqueFd fd = Memfd();
  Make(1, 10, fd, 8);
  processes_.Add(1, {11, PageAction::kGiveBack, {{fd.get(), 4 * kPage, 4 * kPage}}}, now_);
  EXPECT_EQ(processes_.num_open(), 2u);
  std::vector<uint64_t> done = Await();
  if (done.size() == 1) done.push_back(Await().front());
  EXPECT_THAT(done, ElementsAre(10, 11));
  EXPECT_EQ(NumPages(fd), 4u);
  EXPECT_EQ(processes_.num_open(), 0u);
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(PageProcessesTest, ATaskOfMoreFilesThanAMessageTakesIsDoneWhole) {
  std::vector<UniqueFd> fds;
  PageProcesses::Task task = {.id = 1};
  for (size_t i = 0; i < 3 * kMaxPagesOfOrder + 1; ++i) {
    fds.push_back(Memfd());
    task.pages.push_back({fds.back().get(), 0, kPage});
  }
  processes_.Add(1, std::move(task), now_);
  EXPECT_THAT(Await(), ElementsAre(1));
  for (const UniqueFd& fd : fds) EXPECT_EQ(NumPages(fd), 1u);
}

TEST_F(PageProcessesTest, WhatFailsIsNamedAndTheNextGoesOn) {
  const UniqueFd fd = Memfd();
  const UniqueFd no_file(memfd_create("read-only", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  processes_.Add(1, {1, PageAction::kMake, {{no_file.get(), 0, kPage}, {fd.get(), 0, kPage}}},
                 now_);
  std::vector<PageProcesses::Done> done;
  while (done.empty()) done = processes_.TakeDone(now_);
  EXPECT_EQ(done[0].error, ENOSPC) << "the file has no bytes";
  EXPECT_EQ(NumPages(fd), 0u);
  Make(1, 2, fd, 1);
  EXPECT_THAT(Await(), ElementsAre(2));
}

TEST_F(PageProcessesTest, NobodyWaitsForAnotherUsersAndWhoIsLateIsSaid) {
  const int of_one = ProcessOf(1);
  ASSERT_EQ(kill(of_one, SIGSTOP), 0);
  const UniqueFd one = Memfd();
  const UniqueFd other = Memfd();
  Make(1, 1, one, 1);
  processes_.Hold(2);
  for (uint64_t id = 2; id < 5; ++id) {
    Make(2, id, other, id);
    EXPECT_THAT(Await(), ElementsAre(id));
  }
  const absl::Time late = processes_.next_deadline();
  EXPECT_EQ(late, now_ + absl::Seconds(1));
  processes_.Tick(late - absl::Milliseconds(1));
  EXPECT_THAT(Warnings(), IsEmpty());
  processes_.Tick(late);
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("of user 1 for 1s")));
  EXPECT_EQ(processes_.next_deadline(), absl::InfiniteFuture()) << "it is said once";
  EXPECT_FALSE(processes_.awaits_soon());
  kill(of_one, SIGCONT);
  EXPECT_THAT(Await(), ElementsAre(1));
}

TEST_F(PageProcessesTest, OneThatIsKilledIsReplacedAndNothingIsLost) {
  const int pid = ProcessOf(1);
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const UniqueFd fd = Memfd();
  Make(1, 1, fd, 1);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_THAT(Await(), ElementsAre(1));
  EXPECT_EQ(NumPages(fd), 1u);
  EXPECT_FALSE(Children().contains(pid)) << "it is not reaped";
  EXPECT_THAT(Warnings(), IsEmpty());
}

TEST_F(PageProcessesTest, OneOfWhichNothingIsAskedForAWhileEndsUnlessItIsHeld) {
  const UniqueFd fd = Memfd();
  const int held = ProcessOf(1);
  for (uint32_t uid = 1; uid < 5; ++uid) {
    Make(uid, uid, fd, 1);
    EXPECT_THAT(Await(), ElementsAre(uid));
  }
  EXPECT_EQ(Children().size(), 4u);
  const absl::Time goes = processes_.next_deadline();
  EXPECT_LE(goes, now_ + absl::Seconds(1));
  processes_.Tick(goes - absl::Milliseconds(1));
  EXPECT_EQ(Children().size(), 4u);
  processes_.Tick(goes);
  EXPECT_EQ(processes_.next_deadline(), absl::InfiniteFuture());
  // Their ends are seen without anything being asked.
  for (int ms = 0; ms < 10'000 && Children().size() > 1; ++ms) {
    pollfd ready = {.fd = processes_.ready_fd(), .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 1) > 0) processes_.TakeDone(now_);
  }
  EXPECT_THAT(Children(), ElementsAre(held));
  processes_.Release(1, now_);
  EXPECT_LT(processes_.next_deadline(), absl::InfiniteFuture());
  processes_.Hold(1);
  EXPECT_EQ(processes_.next_deadline(), absl::InfiniteFuture());
  EXPECT_THAT(Children(), ElementsAre(held));
}

// A program that comes to be, or becomes a good one, later.
class WithALateProgram : public PageProcessesTest {
 protected:
  explicit WithALateProgram(const std::string& before = "")
      : PageProcessesTest(testing::TempDir() + "program" + std::to_string(getpid())) {
    if (!before.empty()) PutProgram(before);
  }
  ~WithALateProgram() override { unlink(Path().c_str()); }
  void PutProgram(const std::string& target) {
    unlink(Path().c_str());
    ASSERT_EQ(symlink(target.c_str(), Path().c_str()), 0);
  }
  // Nothing is done in this thread, which would wait for a lock that the user holds.
  void ExpectDoneOnlyOnceThereIsAProcess() {
    const UniqueFd fd = Memfd();
    Make(7, 1, fd, 2);
    processes_.Add(7, {2, PageAction::kGiveBack, {{fd.get(), 0, kPage}}}, now_);
    for (int i = 0; i < 5; ++i) {
      for (int ms = 0; ms < 1000 && processes_.awaits_soon(); ++ms) {
        EXPECT_THAT(processes_.TakeDone(now_), IsEmpty());
        absl::SleepFor(absl::Milliseconds(1));
      }
      now_ = std::max(now_, processes_.next_deadline());
      ASSERT_LT(now_, absl::InfiniteFuture());
      processes_.Tick(now_);
    }
    EXPECT_EQ(NumPages(fd), 0u);
    EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("pages of user 7 are not made")))
        << "it is said once";
    PutProgram(std::filesystem::absolute(kProgram));
    for (int ms = 0; ms < 10'000 && processes_.num_open() > 0; ++ms) {
      if (now_ >= processes_.next_deadline()) processes_.Tick(now_);
      processes_.TakeDone(now_);
      now_ += absl::Milliseconds(1);
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(processes_.num_open(), 0u);
    EXPECT_EQ(NumPages(fd), 1u);
  }

 private:
  static std::string Path() { return testing::TempDir() + "program" + std::to_string(getpid()); }
};

TEST_F(WithALateProgram, WhatIsAskedWaitsForAProcess) { ExpectDoneOnlyOnceThereIsAProcess(); }

class WithOneThatEnds : public WithALateProgram {
 protected:
  WithOneThatEnds() : WithALateProgram("/bin/false") {}
};

TEST_F(WithOneThatEnds, WhatIsAskedWaitsForOneThatDoesNot) { ExpectDoneOnlyOnceThereIsAProcess(); }

// Not an error that another try may not meet.
TEST_F(PageProcessesTest, WhatCannotBeGivenBackIsSaidAndTheNextGoesOn) {
  const UniqueFd sealed(memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(sealed.get(), kPage), 0);
  ASSERT_EQ(fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  processes_.Add(3, {1, PageAction::kGiveBack, {{sealed.get(), 0, kPage}}}, now_);
  std::vector<PageProcesses::Done> done;
  while (done.empty()) done = processes_.TakeDone(now_);
  EXPECT_EQ(done[0].error, EPERM);
  EXPECT_THAT(Warnings(), ElementsAre(HasSubstr("pages of user 3 stay in memory")));
}

// A program that takes this one's place knows of its children what it is told.
TEST_F(PageProcessesTest, OneThatIsAtWorkAtTheEndIsReapedByWhoGoesOn) {
  const int pid = ProcessOf(1);
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const UniqueFd fd = Memfd();
  Make(1, 1, fd, 1);
  processes_.End(absl::Milliseconds(1));
  EXPECT_THAT(processes_.NotEnded(), ElementsAre(pid));
  {
    PageProcesses next(kProgram);
    ASSERT_TRUE(next.Start().ok());
    next.AdoptEnding(pid);
    kill(pid, SIGCONT);
    pollfd ready = {.fd = next.ready_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&ready, 1, 10'000), 1);
    next.TakeDone(now_);
    EXPECT_THAT(next.NotEnded(), IsEmpty());
  }
  EXPECT_THAT(Children(), IsEmpty());
  EXPECT_EQ(NumPages(fd), 1u) << "it has done what it was sent";
}

TEST_F(PageProcessesTest, WhyThereIsNoneIsSaidUntilThereIsOne) {
  const UniqueFd fd = Memfd();
  rlimit files = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none = {0, files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Make(5, 1, fd, 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  const std::string why =
      "pages of user 5 are not made, and operations that need them wait: socketpair: Too many "
      "open files; raise the limit on descriptors (ulimit -n, LimitNOFILE)";
  EXPECT_THAT(Warnings(), ElementsAre(why));
  const std::map<uint32_t, std::string> problems = {{5, why}};
  EXPECT_EQ(processes_.TakeProblems(), problems);
  EXPECT_EQ(processes_.TakeProblems(), std::nullopt) << "it has not changed";
  now_ = processes_.next_deadline();
  processes_.Tick(now_);
  EXPECT_THAT(Await(), ElementsAre(1));
  EXPECT_EQ(processes_.TakeProblems(), (std::map<uint32_t, std::string>()));
}

}  // namespace
}  // namespace epd
