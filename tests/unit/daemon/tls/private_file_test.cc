// Goal: what nobody else may know is not read from a file that others can read or change, and the error names it.
#include "daemon/tls/private_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace epd {
namespace {

using testing::HasSubstr;

class PrivateFileTest : public testing::Test {
 protected:
  std::string File(const std::string& content, mode_t mode) {
    const std::string path = testing::TempDir() + "/secret";
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    return path;
  }
};

TEST_F(PrivateFileTest, ModesThatKeepOthersOutAreTaken) {
  for (const mode_t mode : {0600, 0400, 0700})
    EXPECT_TRUE(CheckPrivateFile("key", File("x", mode)).ok()) << std::oct << mode;
  // A group of root's may be let in by root alone.
  EXPECT_EQ(CheckPrivateFile("key", File("x", 0640)).ok(), geteuid() == 0);
}

TEST_F(PrivateFileTest, OthersModesAndOwnersAreNamed) {
  for (const mode_t mode : {0644, 0604, 0620, 0660, 0602}) {
    const std::string path = File("x", mode);
    const absl::Status bad = CheckPrivateFile("tls_key", path);
    EXPECT_EQ(bad.code(), absl::StatusCode::kFailedPrecondition);
    for (const std::string& text : {std::string("tls_key: "), path, std::string("mode 0600")})
      EXPECT_THAT(std::string(bad.message()), HasSubstr(text));
  }
  const std::string path = File("x", 0600);
  if (chown(path.c_str(), 4711, 4711) != 0) return;  // Not root, or one without other users.
  EXPECT_THAT(std::string(CheckPrivateFile("key", path).message()), HasSubstr("uid 4711"));
  ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
}

TEST_F(PrivateFileTest, TheClustersSecretIsLongEnoughAndWithoutItsLineEnd) {
  EXPECT_EQ(*ReadClusterSecret(""), "");
  EXPECT_EQ(*ReadClusterSecret(File("0123456789abcdef\n", 0600)), "0123456789abcdef");
  EXPECT_FALSE(ReadClusterSecret(File("0123456789abcde\n", 0600)).ok());
  EXPECT_FALSE(ReadClusterSecret(File("0123456789abcdef", 0644)).ok());
  EXPECT_EQ(ReadClusterSecret("/does/not/exist").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace epd
