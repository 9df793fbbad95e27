// Goal: a page of shared memory that is gone ends nobody who has a guard on it, and is said; others end as before.
#include "daemon/shared_memory/page_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/core/unique_fd.h"

namespace epd {
namespace {

constexpr size_t kPage = 4096;

// A file that is mapped and then cut: beyond its end the kernel gives no page.
class Shared {
 public:
  explicit Shared(size_t pages) : bytes_(pages * kPage) {
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes_)), 0);
    data_ =
        static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    std::memset(data_, 7, bytes_);
  }
  ~Shared() { munmap(data_, bytes_); }
  Shared(const Shared&) = delete;

  char* page(size_t index) const { return data_ + index * kPage; }
  PageGuard Guard() const { return {data_, bytes_}; }
  void Cut(size_t pages) { EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(pages * kPage)), 0); }

 private:
  UniqueFd fd_{memfd_create("page_guard_test", MFD_CLOEXEC)};
  size_t bytes_;
  char* data_ = nullptr;
};

TEST(PageGuardTest, WhoTouchesAPageThatIsGoneGoesOn) {
  Shared shared(600);
  const PageGuard guard = shared.Guard();
  const uint64_t before = PageGuard::num_lost();
  EXPECT_FALSE(guard.lost());
  shared.Cut(0);
  *shared.page(0) = 1;
  EXPECT_TRUE(guard.lost());
  EXPECT_EQ(PageGuard::num_lost(), before + 1);
  for (size_t index = 0; index < 600; ++index) *shared.page(index) = 1;
  // 64 pages are replaced at once.
  EXPECT_EQ(PageGuard::num_lost(), before + 10);
}

TEST(PageGuardTest, AnotherMappingLosesNothing) {
  Shared hostile(100);
  Shared honest(100);
  const PageGuard guards[] = {hostile.Guard(), honest.Guard()};
  hostile.Cut(50);
  *hostile.page(99) = 1;
  *honest.page(99) = 2;
  EXPECT_TRUE(guards[0].lost());
  EXPECT_FALSE(guards[1].lost());
  EXPECT_EQ(*honest.page(0), 7);
}

TEST(PageGuardTest, AGuardThatIsMovedStandsAndAnEntryThatIsUsedAgainIsNotLost) {
  Shared shared(1);
  {
    PageGuard guard = shared.Guard();
    PageGuard moved = std::move(guard);
    shared.Cut(0);
    *shared.page(0) = 1;
    EXPECT_TRUE(moved.lost());
    EXPECT_FALSE(guard.lost());
  }
  Shared next(1);
  EXPECT_FALSE(next.Guard().lost());
}

TEST(PageGuardTest, ThousandsOfMappingsAreGuarded) {
  std::vector<std::unique_ptr<Shared>> shared;
  std::vector<PageGuard> guards;
  for (int i = 0; i < 3000; ++i) {
    shared.push_back(std::make_unique<Shared>(1));
    guards.push_back(shared.back()->Guard());
  }
  for (const int i : {0, 1500, 2999}) {
    shared[i]->Cut(0);
    *shared[i]->page(0) = 1;
    EXPECT_TRUE(guards[i].lost()) << i;
  }
  EXPECT_FALSE(guards[1].lost());
}

TEST(PageGuardTest, ThreadsLosePagesWhileOthersBeginAndEndGuards) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([] {
      for (int round = 0; round < 200; ++round) {
        Shared hostile(2);
        Shared honest(2);
        const PageGuard guard = hostile.Guard();
        const PageGuard other = honest.Guard();
        hostile.Cut(round % 2);
        *hostile.page(1) = 1;
        *honest.page(1) = 1;
        EXPECT_TRUE(guard.lost());
        EXPECT_FALSE(other.lost());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// By the signal, or by a sanitizer that had it before.
bool Ended(int status) {
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) != 0;
}

TEST(PageGuardDeathTest, WithoutAGuardTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto touch = [](bool guarded) {
    Shared shared(1);
    Shared other(1);
    const PageGuard guard = other.Guard();
    { const PageGuard gone = guarded ? shared.Guard() : PageGuard(); }
    shared.Cut(0);
    *shared.page(0) = 1;
  };
  EXPECT_EXIT(touch(false), Ended, "");
  EXPECT_EXIT(touch(true), Ended, "");
}

TEST(PageGuardDeathTest, ASignalThatSomebodySendsEndsIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto send = [] {
    Shared shared(1);
    const PageGuard guard = shared.Guard();
    kill(getpid(), SIGBUS);
    pause();
  };
  EXPECT_EXIT(send(), Ended, "");
}

}  // namespace
}  // namespace epd
