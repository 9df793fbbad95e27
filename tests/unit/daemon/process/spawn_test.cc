// Goal: a child gets descriptor 3 and nothing else of epd's, and its end is told in words.
#include "daemon/process/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class SpawnTest : public testing::Test {
 protected:
  SpawnTest() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ours_.reset(pair[0]);
    theirs_.reset(pair[1]);
  }
  Child Shell(const std::string& script) {
    absl::StatusOr<Child> child = Spawn("/bin/sh", {"-c", script}, theirs_.get());
    EXPECT_TRUE(child.ok()) << child.status();
    theirs_.reset();
    return *std::move(child);
  }
  static std::string Wait(const Child& child) {
    pollfd ended = {child.pidfd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&ended, 1, 10'000), 1);
    return Reap(child);
  }
  std::string ReadAll() const {
    std::string text;
    char buffer[256];
    for (ssize_t got; (got = read(ours_.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(got));
    return text;
  }

  UniqueFd ours_;
  UniqueFd theirs_;
};

TEST_F(SpawnTest, ChildHasTheSocketAsThreeAndNoOtherDescriptor) {
  const UniqueFd leaked(
      open("/dev/null", O_RDONLY));  // Not close-on-exec, as a library may leave one.
  const Child child = Shell("echo here >&3; ls /proc/self/fd >&3");
  const std::string said = ReadAll();
  EXPECT_EQ(Wait(child), "exited with status 0");
  EXPECT_EQ(said, "here\n0\n1\n2\n3\n4\n") << "4 is the folder that ls reads";
}

TEST_F(SpawnTest, EndIsToldInWords) {
  EXPECT_EQ(Wait(Shell("exit 3")), "exited with status 3");
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  ours_.reset(pair[0]);
  theirs_.reset(pair[1]);
  EXPECT_EQ(Wait(Shell("kill -9 $$")), "killed by signal 9 (Killed)");
}

TEST_F(SpawnTest, RunningChildIsNotReaped) {
  const Child child = Shell("read line <&3");
  EXPECT_EQ(Reap(child), "");
  ours_.reset();
  EXPECT_THAT(Wait(child), StartsWith("exited"));
}

TEST_F(SpawnTest, MissingBinaryIsNamedWithTheSetting) {
  const absl::Status missing = Spawn("/does/not/exist", {}, theirs_.get()).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("set --worker"));
}

}  // namespace
}  // namespace epd
