// Goal: what NCCL EP compiles lies where only this user writes, and never in another user's folder, who could not remove it.
#include "daemon/backend/nccl_ep/ep_environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd::nccl_ep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CacheFolderTest : public testing::Test {
 protected:
  CacheFolderTest() {
    char pattern[] = "/tmp/epd-cache-test-XXXXXX";
    home_ = mkdtemp(pattern);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", home_.c_str(), 1);
  }
  ~CacheFolderTest() override {
    for (const char* name :
         {"/.cache/epd/nccl_ep", "/.cache/epd", "/.cache", "/epd/nccl_ep", "/epd"})
      rmdir((home_ + name).c_str());
    rmdir(home_.c_str());
  }
  static std::string Problem() {
    std::string problem;
    EXPECT_EQ(CacheFolder(problem), "");
    return problem;
  }
  bool IsEmpty() const { return access((home_ + "/.cache").c_str(), F_OK) != 0; }

  std::string home_;
};

TEST_F(CacheFolderTest, LiesInTheUsersOwnHomeOrWhereItIsAsked) {
  std::string problem;
  EXPECT_EQ(CacheFolder(problem), home_ + "/.cache/epd/nccl_ep");
  setenv("XDG_CACHE_HOME", home_.c_str(), 1);
  EXPECT_EQ(CacheFolder(problem), home_ + "/epd/nccl_ep");
  EXPECT_EQ(problem, "");
}

// As root has them with sudo -E.
TEST_F(CacheFolderTest, AnotherUsersFolderIsRefusedAndNothingIsMadeThere) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_EQ(chown(home_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(Problem(), AllOf(HasSubstr("HOME=" + home_), HasSubstr("uid 65534, who could not")));
  EXPECT_TRUE(IsEmpty());
  setenv("XDG_CACHE_HOME", (home_ + "/cache").c_str(), 1);
  EXPECT_THAT(Problem(), AllOf(HasSubstr("XDG_CACHE_HOME=" + home_ + "/cache"),
                               HasSubstr("uid 65534, who could not")));
  EXPECT_TRUE(IsEmpty());
  ASSERT_EQ(chown(home_.c_str(), 0, 0), 0);
}

TEST_F(CacheFolderTest, AVariableThatNamesNoFolderIsRefused) {
  setenv("XDG_CACHE_HOME", "cache", 1);
  EXPECT_THAT(Problem(), HasSubstr("XDG_CACHE_HOME=cache is no absolute path"));
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/nonexistent/user", 1);
  EXPECT_THAT(Problem(), HasSubstr("HOME=/nonexistent/user is not there"));
}

}  // namespace
}  // namespace epd::nccl_ep
