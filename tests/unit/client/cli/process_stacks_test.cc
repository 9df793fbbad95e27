// Goal: an archive holds what the threads of a process did, with names, also of one that has ended; a page can make nobody signal
// a process that does not expect it.
#include "client/cli/process_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "proto/stacks/page_file.h"
#include "proto/stacks/stack_writer.h"

namespace epd::cli {

// What the child hangs in. For other files' eyes, so that it is not inlined.
__attribute__((noinline, used)) int HangsHere(int ready) {
  const char byte = 'r';
  if (write(ready, &byte, 1) != 1) return 1;
  while (poll(nullptr, 0, -1) <= 0) {
  }
  return 0;
}

namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// A process that has started its page and hangs; killed at the end.
class Hanging {
 public:
  explicit Hanging(const std::string& folder) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (!stacks::Start(stacks::Frames::kUnwound, folder).empty()) _exit(1);
      _exit(HangsHere(ends[1]));
    }
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    close(ends[0]);
  }
  ~Hanging() { Kill(); }

  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

class ProcessStacksTest : public testing::Test {
 protected:
  ProcessStacksTest()
      : folder_(fs::path(testing::TempDir()) / ("pages" + std::to_string(getpid()))) {}
  ~ProcessStacksTest() override { fs::remove_all(folder_); }

  SupportArchive Archived(absl::Duration patience = kPatience) {
    SupportArchive archive;
    AddStacks({folder_.string()}, patience, archive);
    return archive;
  }

  fs::path folder_;
};

std::string FunctionsOf(const SupportArchive::Stacks& stacks) {
  std::string all;
  for (const auto& thread : stacks.threads()) {
    for (const auto& frame : thread.frames()) all += frame.function() + "\n";
  }
  return all;
}

TEST_F(ProcessStacksTest, WhereAProcessHangsIsNamed) {
  const Hanging hanging(folder_);
  const SupportArchive archive = Archived();
  ASSERT_EQ(archive.stacks_size(), 1);
  const SupportArchive::Stacks& stacks = archive.stacks(0);
  EXPECT_EQ(stacks.problem(), "");
  EXPECT_EQ(stacks.pid(), hanging.pid());
  EXPECT_FALSE(stacks.ended());
  ASSERT_EQ(stacks.threads_size(), 1);
  EXPECT_THAT(FunctionsOf(stacks), HasSubstr("epd::cli::HangsHere(int)+0x"));
  ASSERT_GE(stacks.modules_size(), 1);
  ASSERT_EQ(archive.parts_size(), 1);
  EXPECT_TRUE(archive.parts(0).ok());
}

TEST_F(ProcessStacksTest, WhatAProcessWroteStaysWhenItHasEnded) {
  Hanging hanging(folder_);
  const pid_t pid = hanging.pid();
  ASSERT_EQ(Archived().stacks_size(), 1);
  hanging.Kill();
  const SupportArchive archive = Archived();
  ASSERT_EQ(archive.stacks_size(), 1);
  EXPECT_TRUE(archive.stacks(0).ended());
  EXPECT_EQ(archive.stacks(0).pid(), pid);
  EXPECT_NE(archive.stacks(0).written_at(), "");
  EXPECT_THAT(FunctionsOf(archive.stacks(0)), HasSubstr("HangsHere"));
}

TEST_F(ProcessStacksTest, OneThatIsStoppedIsSaidToBe) {
  const Hanging hanging(folder_);
  kill(hanging.pid(), SIGSTOP);
  const SupportArchive archive = Archived(absl::Milliseconds(200));
  kill(hanging.pid(), SIGCONT);
  ASSERT_EQ(archive.stacks_size(), 1);
  EXPECT_THAT(archive.stacks(0).problem(), HasSubstr("T (stopped)"));
  EXPECT_FALSE(archive.parts(0).ok());
}

TEST_F(ProcessStacksTest, AProcessThatDoesNotHandleTheSignalIsNotSentIt) {
  auto page = std::make_unique<stacks::StackPage>();
  const pid_t innocent = fork();
  if (innocent == 0) {
    pause();
    _exit(0);
  }
  page->magic = stacks::kMagic;
  page->version = stacks::kVersion;
  page->pid = innocent;
  page->uid = geteuid();
  page->start_ticks = stacks::StartTicksOf(std::to_string(innocent));
  fs::create_directory(folder_);
  std::ofstream(folder_ / "forged", std::ios::binary)
      .write(reinterpret_cast<const char*>(page.get()), sizeof(stacks::StackPage));
  const SupportArchive archive = Archived();
  int status = 0;
  EXPECT_EQ(waitpid(innocent, &status, WNOHANG), 0);  // It lives.
  kill(innocent, SIGKILL);
  waitpid(innocent, &status, 0);
  ASSERT_EQ(archive.stacks_size(), 1);
  EXPECT_THAT(archive.stacks(0).problem(), HasSubstr("does not belong to it"));
}

TEST_F(ProcessStacksTest, APageOfWildNumbersHarmsNobody) {
  fs::create_directory(folder_);
  std::string wild(sizeof(stacks::StackPage), '\xff');
  auto& page = *reinterpret_cast<stacks::StackPage*>(wild.data());
  page.magic = stacks::kMagic;
  page.version = stacks::kVersion;
  page.uid = geteuid();
  std::ofstream(folder_ / "wild", std::ios::binary) << wild;
  std::ofstream(folder_ / "short", std::ios::binary) << "EPSTACK1";
  const SupportArchive archive = Archived();
  ASSERT_EQ(archive.stacks_size(), 1);
  EXPECT_LE(archive.stacks(0).threads_size(), static_cast<int>(stacks::kMaxThreads));
}

TEST_F(ProcessStacksTest, WhereNobodyHasAPageNothingIsSaid) {
  const SupportArchive archive = Archived();
  EXPECT_EQ(archive.stacks_size(), 0);
  EXPECT_EQ(archive.parts_size(), 0);
}

}  // namespace
}  // namespace epd::cli
