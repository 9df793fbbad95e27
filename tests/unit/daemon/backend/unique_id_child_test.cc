// Goal: a process that makes a unique id may fail, hang or babble: the caller gets a named error in time, and no process
// stays behind.
#include "daemon/backend/unique_id_child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

namespace epd {
namespace {

using ::testing::HasSubstr;

// A program that does what `script` says instead of making an id.
std::string Program(const std::string& name, const std::string& script) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  chmod(path.c_str(), 0700);
  return path;
}

bool HasNoChildren() { return waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

TEST(UniqueIdChild, TakesThe128BytesFromItsOutput) {
  const auto id =
      MakeUniqueIdInChild(Program("good", "printf '%128s' x"), "lib", absl::Seconds(30));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_EQ(*id, std::string(127, ' ') + "x");
  EXPECT_TRUE(HasNoChildren());
}

TEST(UniqueIdChild, HandsOnWhatAFailingOneSays) {
  const auto id = MakeUniqueIdInChild(Program("bad", "echo no network for $1 >&2; exit 1"), "lib",
                                      absl::Seconds(30));
  EXPECT_EQ(id.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(id.status().message()), HasSubstr("no network for --make-unique-id=lib"));
  EXPECT_TRUE(HasNoChildren());
}

TEST(UniqueIdChild, EndsOneThatHangs) {
  const auto id =
      MakeUniqueIdInChild(Program("hangs", "exec sleep 100"), "lib", absl::Milliseconds(200));
  EXPECT_EQ(id.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(HasNoChildren());
}

TEST(UniqueIdChild, RefusesOneThatBabbles) {
  const auto id = MakeUniqueIdInChild(Program("babbles", "exec yes"), "lib", absl::Seconds(30));
  EXPECT_EQ(id.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(HasNoChildren());
}

TEST(UniqueIdChild, SaysThatThereIsNoProgram) {
  const auto id = MakeUniqueIdInChild("/nonexistent/worker", "lib", absl::Seconds(30));
  EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(id.status().message()), HasSubstr("/nonexistent/worker"));
}

}  // namespace
}  // namespace epd
