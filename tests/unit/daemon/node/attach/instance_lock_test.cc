// Goal: one epd per socket; a killed one leaves nothing that stops the next, a living one is named.
#include "daemon/node/attach/instance_lock.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/node/attach/socket_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class InstanceLockTest : public testing::Test {
 protected:
  InstanceLockTest() {
    char pattern[] = "/tmp/epd-lock-XXXXXX";
    folder_ = mkdtemp(pattern);
    socket_ = folder_ + "/s";
  }
  ~InstanceLockTest() override {
    for (const char* name : {"/s", "/s.lock", "/dir/s"}) unlink((folder_ + name).c_str());
    rmdir((folder_ + "/dir").c_str());
    rmdir(folder_.c_str());
  }
  bool LockFileExists() const { return access((socket_ + ".lock").c_str(), F_OK) == 0; }

  std::string folder_;
  std::string socket_;
};

TEST_F(InstanceLockTest, SecondEpdOnALivingSocketFailsAtOnceAndNamesThePid) {
  const auto lock = InstanceLock::Take(socket_, absl::Seconds(5));
  ASSERT_TRUE(lock.ok()) << lock.status();
  const auto listener = ListenAt(socket_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const auto second = InstanceLock::Take(socket_, absl::InfiniteDuration());
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("another epd (pid " + std::to_string(getpid()) + ")"));
}

TEST_F(InstanceLockTest, PredecessorThatNoLongerListensIsWaitedForOnlySoLong) {
  const auto lock = InstanceLock::Take(socket_, absl::ZeroDuration());
  ASSERT_TRUE(lock.ok());
  const auto second = InstanceLock::Take(socket_, absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("without serving"));
}

TEST_F(InstanceLockTest, EndLeavesNoFileAndTheNextTakesOver) {
  { ASSERT_TRUE(InstanceLock::Take(socket_, absl::ZeroDuration()).ok()); }
  EXPECT_FALSE(LockFileExists());
  EXPECT_TRUE(InstanceLock::Take(socket_, absl::ZeroDuration()).ok());
}

TEST_F(InstanceLockTest, FileOfAKilledEpdIsTakenOver) {
  std::ofstream(socket_ + ".lock") << "999999\n";
  EXPECT_TRUE(InstanceLock::Take(socket_, absl::ZeroDuration()).ok());
}

TEST_F(InstanceLockTest, StaleSocketIsReplacedAndAnythingElseIsNot) {
  { ASSERT_TRUE(ListenAt(socket_).ok()); }
  EXPECT_FALSE(SomebodyListens(socket_));
  const auto again = ListenAt(socket_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(SomebodyListens(socket_));
  unlink(socket_.c_str());
  std::ofstream(socket_) << "precious";
  EXPECT_TRUE(absl::IsFailedPrecondition(ListenAt(socket_).status()));
  EXPECT_EQ(access(socket_.c_str(), F_OK), 0);
}

TEST_F(InstanceLockTest, LivingEpdKeepsItsSocketWhenItsLockFileWasRemoved) {
  const auto lock = InstanceLock::Take(socket_, absl::ZeroDuration());
  ASSERT_TRUE(lock.ok());
  const auto listener = ListenAt(socket_);
  ASSERT_TRUE(listener.ok());
  unlink((socket_ + ".lock").c_str());

  const auto second = InstanceLock::Take(socket_, absl::ZeroDuration());
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr("another epd (pid " + std::to_string(getpid()) + ")"),
                    HasSubstr("which somebody has removed")));
  EXPECT_FALSE(LockFileExists()) << "what the second one made";
}

TEST_F(InstanceLockTest, ALostFileIsTakenAgainUnlessAnotherEpdWasFaster) {
  auto lock = InstanceLock::Take(socket_, absl::ZeroDuration());
  ASSERT_TRUE(lock.ok());
  EXPECT_TRUE(lock->Renew().ok());
  unlink((socket_ + ".lock").c_str());
  EXPECT_TRUE(lock->Renew().ok());
  EXPECT_TRUE(absl::IsAlreadyExists(InstanceLock::Take(socket_, absl::ZeroDuration()).status()));
  unlink((socket_ + ".lock").c_str());
  {
    const auto other = InstanceLock::Take(socket_, absl::ZeroDuration());
    ASSERT_TRUE(other.ok()) << other.status();
    const absl::Status lost = lock->Renew();
    EXPECT_TRUE(absl::IsAlreadyExists(lost)) << lost;
    EXPECT_THAT(std::string(lost.message()),
                HasSubstr("another epd (pid " + std::to_string(getpid()) + ") has its lock file"));
  }
  EXPECT_TRUE(lock->Renew().ok()) << "the other has ended";
}

// Whatever kind of connection it takes, and though its queue is full.
TEST_F(InstanceLockTest, LivingSocketIsNeverReplaced) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    const auto living = ListenAt(socket_, type, 0600);
    ASSERT_TRUE(living.ok()) << living.status();
    const SocketFile file(socket_);
    for (const int other : {SOCK_SEQPACKET, SOCK_STREAM}) {
      const auto second = ListenAt(socket_, other, 0600);
      EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
    }
    EXPECT_TRUE(file.IsThere());
    listen(living->get(), 0);
    std::vector<UniqueFd> waiting;
    for (int i = 0; i < 4; ++i) {
      waiting.emplace_back(socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      socket_.copy(address.sun_path, sizeof address.sun_path - 1);
      connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    EXPECT_EQ(WhoListens(socket_), "another epd (its queue is full)");
    EXPECT_TRUE(absl::IsAlreadyExists(ListenAt(socket_).status()));
    unlink(socket_.c_str());
  }
}

TEST_F(InstanceLockTest, SocketOfSomebodyElseIsNotRemoved) {
  const auto own = ListenAt(socket_);
  ASSERT_TRUE(own.ok());
  SocketFile file(socket_);
  unlink(socket_.c_str());
  EXPECT_FALSE(file.IsThere());
  const auto others = ListenAt(socket_);
  ASSERT_TRUE(others.ok());
  file.Remove();
  EXPECT_EQ(access(socket_.c_str(), F_OK), 0);
  SocketFile(socket_).Remove();
  EXPECT_NE(access(socket_.c_str(), F_OK), 0);
}

TEST_F(InstanceLockTest, ProgramThatReplacesAnotherTakesOverOnlyWhatAnswersAsThisProcess) {
  const auto own = ListenAt(socket_);
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(SocketFile::Adopt(socket_).IsThere());
  unlink(socket_.c_str());
  EXPECT_FALSE(SocketFile::Adopt(socket_).IsThere());
  const pid_t child = fork();
  if (child == 0) {
    const auto others = ListenAt(socket_);
    pause();
    _exit(others.ok() ? 0 : 1);
  }
  while (!SomebodyListens(socket_)) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(SocketFile::Adopt(socket_).IsThere());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(SocketPathTest, PathsThatNoSocketCanHaveAreRefusedWithTheLimit) {
  const absl::Status longest = CheckSocketPath("/" + std::string(106, 'x'), "socket");
  EXPECT_TRUE(longest.ok()) << longest;
  const absl::Status too_long = CheckSocketPath("/" + std::string(107, 'x'), "socket");
  EXPECT_TRUE(absl::IsInvalidArgument(too_long));
  EXPECT_THAT(std::string(too_long.message()),
              HasSubstr("got a path of 108 bytes, expected at most 107"));
  for (const char* bad : {"", "relative/s", "/folder/"})
    EXPECT_FALSE(CheckSocketPath(bad, "socket").ok()) << bad;
}

TEST_F(InstanceLockTest, FolderIsMadeForItsOwnerAndRefusedWhenEverybodyMayWrite) {
  const std::string path = folder_ + "/dir/s";
  ASSERT_TRUE(PrepareFolderOf(path).ok());
  struct stat made;
  ASSERT_EQ(stat((folder_ + "/dir").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, geteuid() == 0 ? 0755u : 0700u);
  chmod((folder_ + "/dir").c_str(), 0777);
  const absl::Status refused = PrepareFolderOf(path);
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("mode 0777"));
  chmod((folder_ + "/dir").c_str(), 01777);
  EXPECT_TRUE(PrepareFolderOf(path).ok()) << "sticky, as /tmp is";
}

TEST_F(InstanceLockTest, NothingIsMadeInAnotherUsersFolder) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(chown(folder_.c_str(), 12345, 12345), 0);
  const absl::Status refused = PrepareFolderOf(folder_ + "/dir/s");
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("uid 12345, whose folder is above, could not use or remove"));
  EXPECT_NE(access((folder_ + "/dir").c_str(), F_OK), 0);
}

TEST_F(InstanceLockTest, AVariableThatADefaultComesFromIsNamed) {
  setenv("XDG_RUNTIME_DIR", "relative", 1);
  const absl::Status refused = CheckSocketPath("relative/epd/epd.sock", "socket");
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("XDG_RUNTIME_DIR: got 'relative', expected an absolute path"));
}

}  // namespace
}  // namespace epd
