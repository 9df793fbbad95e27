// Goal: epctl looks for the daemon where the client library does, and tells apart the ways in which
// it is not there.
#include "client/cli/socket_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>

namespace epd::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;

SearchContext ContextWith(const std::map<std::string, std::string>& env) {
  return {.getenv =
              [env](const char* name) {
                const auto found = env.find(name);
                return found == env.end() ? nullptr : found->second.c_str();
              },
          .uid = 1000};
}

auto PathIs(const std::string& path) { return Field(&SocketCandidate::attach_path, path); }

TEST(FindCandidatesTest, LooksAtTheNodeThenAtTheUsersOwn) {
  EXPECT_THAT(FindCandidates("", ContextWith({})),
              ElementsAre(PathIs("/run/epd/epd.sock"), PathIs("/tmp/epd-1000/epd.sock")));
  EXPECT_THAT(FindCandidates("", ContextWith({{"XDG_RUNTIME_DIR", "/run/user/1000"}})),
              ElementsAre(PathIs("/run/epd/epd.sock"), PathIs("/run/user/1000/epd/epd.sock")));
}

TEST(FindCandidatesTest, ANamedSocketIsTheOnlyCandidate) {
  const SearchContext context = ContextWith({{"EPD_SOCKET", "/e.sock"}});
  EXPECT_THAT(FindCandidates("", context), ElementsAre(PathIs("/e.sock")));
  EXPECT_THAT(FindCandidates("/f.sock", context), ElementsAre(PathIs("/f.sock")));
}

TEST(FindCandidatesTest, AnEmptyVariableCountsAsUnset) {
  EXPECT_THAT(FindCandidates("", ContextWith({{"EPD_SOCKET", ""}, {"XDG_RUNTIME_DIR", ""}})),
              ElementsAre(PathIs("/run/epd/epd.sock"), PathIs("/tmp/epd-1000/epd.sock")));
}

TEST(FindCandidatesTest, WhatIsWrongWithThePrivateFolderIsSaidBesideIt) {
  const auto found = FindCandidates("", ContextWith({{"XDG_RUNTIME_DIR", "relative"}}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].problem, "");
  EXPECT_THAT(found[1].problem, ::testing::HasSubstr("XDG_RUNTIME_DIR: got 'relative'"));
}

TEST(GrpcPathTest, StandsBesideTheAttachSocket) {
  EXPECT_EQ(GrpcPath("/run/epd/epd.sock"), "/run/epd/epd-grpc.sock");
  EXPECT_EQ(GrpcPath("/x/y"), "/x/y-grpc");
  EXPECT_EQ(GrpcPath("/run/epd/epd-grpc.sock"), "/run/epd/epd-grpc.sock");
}

// Gives up root's power over file modes, in a death test's child.
void DropCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  if (syscall(SYS_capset, &header, none) != 0) _exit(99);
}

class ProbeSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/epd-probe-XXXXXX";  // A socket path is at most 107 bytes.
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    path_ = name + "/s.sock";
  }
  void TearDown() override {
    unlink(path_.c_str());
    rmdir(path_.substr(0, path_.rfind('/')).c_str());
  }

  // A bound socket; it listens only if asked to.
  int Bind(bool listens) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (listens) {
      EXPECT_EQ(listen(fd, 1), 0);
    }
    return fd;
  }

  std::string path_;
};

TEST_F(ProbeSocketTest, TellsAListenerFromALeftoverFromNothing) {
  EXPECT_EQ(ProbeSocket(path_).result, ProbeResult::kMissing);
  const int fd = Bind(/*listens=*/true);
  EXPECT_EQ(ProbeSocket(path_).result, ProbeResult::kListening);
  close(fd);
  EXPECT_EQ(ProbeSocket(path_).result, ProbeResult::kRefused);
}

TEST_F(ProbeSocketTest, ASocketThatThisUserMayNotUseIsDenied) {
  const int fd = Bind(/*listens=*/true);
  ASSERT_EQ(chmod(path_.c_str(), 0), 0);
  EXPECT_EXIT(
      {
        DropCapabilities();
        _exit(ProbeSocket(path_).result == ProbeResult::kDenied ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  close(fd);
}

TEST_F(ProbeSocketTest, APathThatNoSocketCanHaveIsNamedTooLong) {
  const Probe probe = ProbeSocket("/" + std::string(120, 'x'));
  EXPECT_EQ(probe.result, ProbeResult::kTooLong);
  EXPECT_THAT(probe.text, ::testing::HasSubstr("121 bytes"));
}

}  // namespace
}  // namespace epd::cli
