// Goal: a process writes what each of its threads does whatever they do, only when its own user asks, and leaves nothing behind.
#include "proto/stacks/stack_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/stacks/page_file.h"

namespace epd::stacks {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kDeadline{20};

std::unique_ptr<StackPage> Copy(const fs::path& path) {
  auto page = std::make_unique<StackPage>();
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(page.get()), sizeof(StackPage));
  return file ? std::move(page) : nullptr;
}

fs::path PageOf(const fs::path& folder, const std::string& pid = "self") {
  const std::string number = pid == "self" ? std::to_string(getpid()) : pid;
  return folder / (number + "." + std::to_string(StartTicksOf(pid)));
}

std::unique_ptr<StackPage> WholeRound(const fs::path& path, uint32_t round) {
  const auto end = steady_clock::now() + kDeadline;
  while (steady_clock::now() < end) {
    auto page = Copy(path);
    if (page != nullptr && page->round.load() >= round && IsWhole(*page)) return page;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return nullptr;
}

const ThreadStack* StackOf(const StackPage& page, int32_t tid) {
  for (uint32_t i = 0; i < page.num_threads.load(); ++i) {
    if (page.threads[i].tid.load() == tid) return &page.threads[i];
  }
  return nullptr;
}

// Whether a frame lies in [function, function + some): the functions below are small.
bool Passes(const ThreadStack& stack, void (*function)(std::atomic<int>&, std::mutex&)) {
  constexpr uint64_t kLargest = 4096;
  const auto begin = reinterpret_cast<uint64_t>(function);
  for (uint32_t i = 0; i < stack.num_frames; ++i) {
    if (stack.frames[i] >= begin && stack.frames[i] < begin + kLargest) return true;
  }
  return false;
}

void Say(std::atomic<int>& tid) { tid.store(static_cast<int>(syscall(SYS_gettid))); }

__attribute__((noinline)) void WaitsForALock(std::atomic<int>& tid, std::mutex& held) {
  prctl(PR_SET_NAME, "waits");
  Say(tid);
  const std::lock_guard<std::mutex> lock(held);
}

__attribute__((noinline)) void Spins(std::atomic<int>& tid, std::mutex&) {
  Say(tid);
  while (tid.load() != 0) {
  }
}

class StackWriterTest : public testing::Test {
 protected:
  StackWriterTest()
      : folder_(fs::path(testing::TempDir()) / ("stacks" + std::to_string(getpid()))) {}
  ~StackWriterTest() override {
    Stop();
    fs::remove_all(folder_);
  }
  fs::path folder_;
};

// Of rounds, which end when every thread of the process has written.
class StackRoundTest : public StackWriterTest {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer's own thread takes no signal, and holds others back until a "
                    "thread calls into its runtime";
#endif
  }
};

TEST_F(StackRoundTest, ThreadsThatWaitAndThatSpinAreSeen) {
  ASSERT_EQ(Start(Frames::kUnwound, folder_), "");
  std::mutex held;
  std::atomic<int> waiting{0};
  std::atomic<int> spinning{0};
  std::unique_lock<std::mutex> lock(held);
  std::thread waits([&] { WaitsForALock(waiting, held); });
  std::thread spins([&] { Spins(spinning, held); });
  while (waiting.load() == 0 || spinning.load() == 0) std::this_thread::yield();
  kill(getpid(), SIGUSR2);
  const auto page = WholeRound(PageOf(folder_), 1);
  const int tids[] = {waiting.load(), spinning.load()};
  spinning.store(0);
  lock.unlock();
  waits.join();
  spins.join();

  ASSERT_NE(page, nullptr);
  EXPECT_EQ(page->magic, kMagic);
  EXPECT_EQ(page->pid, getpid());
  const ThreadStack* const first = StackOf(*page, tids[0]);
  const ThreadStack* const second = StackOf(*page, tids[1]);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_STREQ(first->name, "waits");
  EXPECT_TRUE(Passes(*first, WaitsForALock));
  EXPECT_FALSE(Passes(*first, Spins));
  EXPECT_TRUE(Passes(*second, Spins));
}

TEST_F(StackRoundTest, AStackThatIsScannedHasItsFramesToo) {
  ASSERT_EQ(Start(Frames::kScanned, folder_), "");
  std::mutex held;
  std::atomic<int> waiting{0};
  std::unique_lock<std::mutex> lock(held);
  std::thread waits([&] { WaitsForALock(waiting, held); });
  while (waiting.load() == 0) std::this_thread::yield();
  kill(getpid(), SIGUSR2);
  const auto page = WholeRound(PageOf(folder_), 1);
  lock.unlock();
  waits.join();
  ASSERT_NE(page, nullptr);
  const ThreadStack* const stack = StackOf(*page, waiting.load());
  ASSERT_NE(stack, nullptr);
  EXPECT_TRUE(Passes(*stack, WaitsForALock));
  EXPECT_FALSE(Passes(*stack, Spins));
  EXPECT_EQ(stack->flags & kIsScanned, kIsScanned);
}

TEST_F(StackRoundTest, ModulesOfFramesAreNamed) {
  ASSERT_EQ(Start(Frames::kUnwound, folder_), "");
  kill(getpid(), SIGUSR2);
  const auto page = WholeRound(PageOf(folder_), 1);
  ASSERT_NE(page, nullptr);
  const auto own = reinterpret_cast<uint64_t>(&WaitsForALock);
  bool is_known = false;
  for (uint32_t i = 0; i < page->num_modules.load(); ++i) {
    const Module& module = page->modules[i];
    ASSERT_EQ(module.written.load(), 1u);
    if (own < module.begin || own >= module.end) continue;
    is_known = true;
    EXPECT_STREQ(module.path, "");  // The program.
  }
  EXPECT_TRUE(is_known);
}

TEST_F(StackRoundTest, EachRequestIsARound) {
  ASSERT_EQ(Start(Frames::kUnwound, folder_), "");
  for (uint32_t round = 1; round <= 3; ++round) {
    kill(getpid(), SIGUSR2);
    const auto page = WholeRound(PageOf(folder_), round);
    ASSERT_NE(page, nullptr);
    EXPECT_EQ(page->round.load(), round);
    EXPECT_GT(page->asked_unix_ns.load(), 0);
  }
}

TEST_F(StackWriterTest, AProgramsOwnHandlerStays) {
  signal(SIGUSR2, [](int) {});
  EXPECT_THAT(Start(Frames::kUnwound, folder_), HasSubstr("handles SIGUSR2 itself"));
  EXPECT_FALSE(fs::exists(PageOf(folder_)));
  signal(SIGUSR2, SIG_DFL);
}

TEST_F(StackWriterTest, AFolderThatOthersMayUseIsRefused) {
  fs::create_directory(folder_);
  fs::permissions(folder_, fs::perms::all);
  EXPECT_THAT(Start(Frames::kUnwound, folder_), HasSubstr("mode 0700"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(StackWriterTest, NothingIsLeftBehind) {
  ASSERT_EQ(Start(Frames::kUnwound, folder_), "");
  EXPECT_TRUE(fs::exists(PageOf(folder_)));
  struct stat facts = {};
  ASSERT_EQ(stat(PageOf(folder_).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  Stop();
  EXPECT_FALSE(fs::exists(folder_));
  kill(getpid(), SIGUSR2);  // Is ignored, one that comes late too.
}

// In a child, which ends without a word, as one that was killed.
pid_t Killed(const fs::path& folder, bool asks) {
  const pid_t child = fork();
  if (child == 0) {
    const bool started = Start(Frames::kUnwound, folder).empty();
    if (asks) WriteBeforeTheEnd();
    _exit(started ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return child;
}

TEST_F(StackWriterTest, TheLastWordsOfTheLastOnesStay) {
  const pid_t silent = Killed(folder_, false);
  std::vector<pid_t> spoke;
  for (int i = 0; i < 6; ++i) spoke.push_back(Killed(folder_, true));
  ASSERT_EQ(Start(Frames::kUnwound, folder_), "");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    names.push_back(name.substr(0, name.find('.')));
  }
  EXPECT_THAT(names, testing::Not(testing::Contains(std::to_string(silent))));
  EXPECT_THAT(names,
              testing::UnorderedElementsAre(std::to_string(getpid()), std::to_string(spoke[2]),
                                            std::to_string(spoke[3]), std::to_string(spoke[4]),
                                            std::to_string(spoke[5])));
}

TEST_F(StackWriterTest, AForkedChildWritesNothingAndRemovesNothing) {
  ASSERT_EQ(Start(Frames::kUnwound, folder_), "");
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGUSR2);
    Stop();
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const auto page = Copy(PageOf(folder_));
  ASSERT_NE(page, nullptr);
  EXPECT_EQ(page->round.load(), 0u);
}

}  // namespace
}  // namespace epd::stacks
