// Goal: a client believes nobody to be its daemon whom neither its own user nor root has named.
#include "client/c/trusted_server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd::client {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::SizeIs;

class TrustedServersTest : public testing::Test {
 protected:
  TrustedServersTest() { unsetenv("EPD_SERVER_UID"); }
  ~TrustedServersTest() override { unlink(path_.c_str()); }

  Status Read(const std::string& text) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode_);
    return TrustedServers(path_, &uids_);
  }

  const std::string path_ = testing::TempDir() + "/client.conf." + std::to_string(getpid());
  mode_t mode_ = 0644;
  std::vector<uid_t> uids_;
};

TEST_F(TrustedServersTest, WithoutAFileTheyAreThisUserAndRoot) {
  EXPECT_TRUE(TrustedServers("/does/not/exist", &uids_).ok());
  EXPECT_THAT(uids_, AllOf(Contains(geteuid()), Contains(0u), SizeIs(geteuid() == 0 ? 1 : 2)));
}

TEST_F(TrustedServersTest, RootsFileNamesUsersByNameOrNumber) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can write such a file";
  EXPECT_TRUE(Read("# epd's own user\nserver_user = 4711\n\n server_user=nobody # by name\n").ok());
  EXPECT_THAT(uids_, IsSupersetOf({uid_t{4711}, uid_t{65534}}));
}

TEST_F(TrustedServersTest, ALineThatNamesNobodyIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can write such a file";
  for (const char* bad :
       {"server_user = no-such-user", "server_user", "user = 0", "server_user = -1"}) {
    const Status read = Read(std::string("\n") + bad + "\n");
    EXPECT_EQ(read.code, Code::kInvalidArgument) << bad;
    EXPECT_THAT(read.message, HasSubstr("line 2 of " + path_));
  }
}

TEST_F(TrustedServersTest, AFileThatOthersMayWriteIsRefused) {
  mode_ = 0664;
  EXPECT_EQ(Read("server_user = 4711\n").code, Code::kPermissionDenied);
  if (geteuid() != 0) return;
  mode_ = 0644;
  ASSERT_TRUE(Read("").ok());
  ASSERT_EQ(chown(path_.c_str(), 4711, 4711), 0);
  EXPECT_THAT(TrustedServers(path_, &uids_).message, HasSubstr("belongs to uid 4711"));
}

}  // namespace
}  // namespace epd::client
