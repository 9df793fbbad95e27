// Goal: what a process wrote can be read by its own user without its help, sent elsewhere and put together there; what is no page
// is refused, and nobody is signalled who does not expect it.
#include "proto/stacks/page_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "proto/stacks/stack_writer.h"

namespace epd::stacks {
namespace {

using ::testing::HasSubstr;

constexpr int kTries = 2000;
constexpr int kPauseMs = 10;

// A process that sleeps; ended with the test.
class Child {
 public:
  explicit Child(bool has_page) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (has_page && !Start(Frames::kUnwound).empty()) _exit(1);
      const bool told = write(ends[1], "r", 1) == 1;
      while (told && poll(nullptr, 0, -1) <= 0) {
      }
      _exit(1);
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
  }
  int pid() const { return pid_; }

 private:
  int pid_ = 0;
};

TEST(PageReaderTest, AProcessWritesWhenItIsAskedAndItsPageCanBeSentInParts) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's own thread, of the child, takes no signal";
#endif
  const Child child(/*has_page=*/true);
  ASSERT_TRUE(AskForStacks(child.pid()));
  std::unique_ptr<StackPage> page;
  for (int i = 0; i < kTries; ++i, poll(nullptr, 0, kPauseMs)) {
    page = ReadPageOf(child.pid());
    ASSERT_NE(page, nullptr);
    if (page->asked_unix_ns.load() != 0 && page->num_threads.load() == 1 && IsWhole(*page)) break;
  }
  ASSERT_EQ(page->num_threads.load(), 1u);
  const UsedParts parts = TakeUsedParts(*page);
  EXPECT_EQ(parts.threads.size(), sizeof(ThreadStack));
  EXPECT_LT(parts.modules.size() + parts.threads.size(), sizeof(StackPage) / 2);
  const auto elsewhere = std::make_unique<StackPage>();
  ASSERT_EQ(PutTogether(parts, elsewhere.get()), "");
  EXPECT_EQ(elsewhere->pid, child.pid());
  EXPECT_EQ(elsewhere->threads[0].tid.load(), child.pid());
  ASSERT_GT(elsewhere->threads[0].num_frames, 1u);
  EXPECT_EQ(elsewhere->threads[0].frames[1], page->threads[0].frames[1]);
  EXPECT_TRUE(IsWhole(*elsewhere));
}

TEST(PageReaderTest, AProcessWithoutAPageIsLeftAlone) {
  const Child child(/*has_page=*/false);
  EXPECT_FALSE(HandlesTheSignal(child.pid(), geteuid()));
  EXPECT_FALSE(AskForStacks(child.pid()));
  EXPECT_EQ(ReadPageOf(child.pid()), nullptr);
  EXPECT_EQ(kill(child.pid(), 0), 0) << "it lives";
}

TEST(PageReaderTest, WhatIsNoPageIsRefused) {
  const auto page = std::make_unique<StackPage>();
  EXPECT_THAT(PutTogether({"", ""}, page.get()), HasSubstr("got 0 and 0 bytes"));
  const std::string head(offsetof(StackPage, modules), '\0');
  EXPECT_THAT(PutTogether({head, ""}, page.get()), HasSubstr("no page of stacks"));
  EXPECT_THAT(PutTogether({std::string(sizeof(StackPage), '\0'), ""}, page.get()),
              HasSubstr("which are no page"));
  EXPECT_THAT(PutTogether({head, std::string(sizeof(StackPage), '\0')}, page.get()),
              HasSubstr("which are no page"));
  page->magic = kMagic;
  page->version = kVersion + 1;
  const UsedParts newer = TakeUsedParts(*page);
  EXPECT_THAT(PutTogether(newer, std::make_unique<StackPage>().get()),
              HasSubstr("the page is of version 2"));
}

}  // namespace
}  // namespace epd::stacks
