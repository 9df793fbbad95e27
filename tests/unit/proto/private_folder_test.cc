// Goal: where a user's private epd lies is decided alike for every program, and what is wrong with XDG_RUNTIME_DIR is said by name,
// with what to do, and never worked around.
#include "proto/epd/v1/private_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uid_t kAlice = 1000;
constexpr PathFacts kMissing = {.error = ENOENT};

PathFacts FolderOf(uid_t uid, mode_t mode = 0700) {
  return {.is_folder = true, .uid = uid, .mode = mode};
}

// What is said of $XDG_RUNTIME_DIR=/run/user/1000, for Alice.
PrivateFolder::Problem Alices(const PathFacts& above, const PathFacts& own) {
  return PrivateFolder("/run/user/1000", kAlice).Judge(above, own);
}

TEST(PrivateFolderTest, LiesWhereTheVariableSaysElseInTmp) {
  EXPECT_EQ(PrivateFolder(nullptr, 7).socket_path(), "/tmp/epd-7/epd.sock");
  EXPECT_EQ(PrivateFolder("", 7).path(), "/tmp/epd-7");
  EXPECT_EQ(PrivateFolder("/run/user/7", 7).path(), "/run/user/7/epd");
}

TEST(PrivateFolderTest, SlashesAtTheEndMakeNoOtherFolder) {
  EXPECT_EQ(PrivateFolder("/run/user/7//", 7).path(), "/run/user/7/epd");
  EXPECT_EQ(PrivateFolder("/", 7).path(), "/epd");
}

TEST(PrivateFolderTest, OnesOwnAndRootsAreTakenAndWhatIsMissingInItCanBeMade) {
  for (const uid_t owner : {kAlice, uid_t{0}}) {
    EXPECT_TRUE(Alices(FolderOf(owner, 01777), kMissing).ok()) << owner;
    EXPECT_TRUE(Alices(FolderOf(owner), FolderOf(kAlice)).ok()) << owner;
  }
}

TEST(PrivateFolderTest, EveryProblemNamesTheVariableAndWhatToDo) {
  const PathFacts fine = FolderOf(kAlice);
  const struct {
    PathFacts above, own;
    Code code;
    std::string text;
  } cases[] = {
      {kMissing, kMissing, Code::kFailedPrecondition, "there is no such folder"},
      {{.error = ELOOP}, kMissing, Code::kFailedPrecondition, "symbolic links"},
      {{.error = EACCES}, kMissing, Code::kPermissionDenied, "Permission denied"},
      {{.uid = kAlice}, {.error = ENOTDIR}, Code::kFailedPrecondition, "is no folder"},
      {FolderOf(1001), kMissing, Code::kPermissionDenied,
       "of user 1001, and this process of user 1000"},
      {FolderOf(0), {.error = EACCES}, Code::kPermissionDenied, "of user 0, mode 0700"},
      {fine, FolderOf(0), Code::kPermissionDenied,
       "a folder of user 0 with mode 0700: move it away"},
      {FolderOf(0, 01777), FolderOf(1001), Code::kPermissionDenied,
       "user 1001 or root can remove it"},
      {fine, FolderOf(kAlice, 0750), Code::kPermissionDenied, "with mode 0750: chmod 700 it"},
      {fine,
       {.is_link = true, .uid = kAlice, .mode = 0777},
       Code::kPermissionDenied,
       "a symbolic link"},
      {fine, {.uid = kAlice, .mode = 0600}, Code::kPermissionDenied, "no folder of user 1000"},
  };
  for (const auto& c : cases) {
    const PrivateFolder::Problem said = Alices(c.above, c.own);
    EXPECT_EQ(said.code, c.code) << said.text;
    EXPECT_THAT(said.text, AllOf(HasSubstr(c.text), HasSubstr("/run/user/1000"),
                                 HasSubstr("set XDG_RUNTIME_DIR to a folder of uid 1000"),
                                 HasSubstr("unset it to have /tmp/epd-1000")));
  }
}

TEST(PrivateFolderTest, RootTakesNoUsersFolder) {
  const auto said = PrivateFolder("/run/user/1000", 0).Judge(FolderOf(kAlice), kMissing);
  EXPECT_EQ(said.code, Code::kPermissionDenied);
  EXPECT_THAT(said.text, HasSubstr("sudo -E"));
}

TEST(PrivateFolderTest, ARelativePathIsRefused) {
  for (const char* bad : {"run", "./run", "~/run"}) {
    const auto said = PrivateFolder(bad, kAlice).Judge(FolderOf(kAlice), kMissing);
    EXPECT_EQ(said.code, Code::kInvalidArgument);
    EXPECT_THAT(said.text, StartsWith(std::string("XDG_RUNTIME_DIR: got '") + bad + "', expected"));
  }
}

TEST(PrivateFolderTest, BothSocketsMustFit) {
  const size_t most = kMaxSocketPathBytes - std::string("/epd/epd-grpc.sock").size();
  const auto of = [](size_t bytes) {
    return PrivateFolder(("/" + std::string(bytes - 1, 'x')).c_str(), kAlice)
        .Judge(FolderOf(kAlice), kMissing);
  };
  EXPECT_TRUE(of(most).ok());
  EXPECT_EQ(of(most + 1).code, Code::kInvalidArgument);
  EXPECT_THAT(of(most + 1).text, AllOf(HasSubstr("has 90 bytes and may have 89"),
                                       HasSubstr("may have 107"), HasSubstr("would have 108")));
}

TEST(PrivateFolderTest, WhereTheVariableIsNotSetItIsToBeSet) {
  const auto said = PrivateFolder(nullptr, kAlice).Judge({.error = ENOENT}, kMissing);
  EXPECT_THAT(said.text, StartsWith("/tmp (XDG_RUNTIME_DIR is not set): there is no such folder"));
  EXPECT_THAT(said.text, ::testing::Not(HasSubstr("unset")));
}

TEST(PrivateFolderTest, WhatFailsInItHasTheCodeOfItsCause) {
  const PrivateFolder folder("/run/user/1000", kAlice);
  EXPECT_EQ(folder.Cannot("open it", EROFS).code, Code::kFailedPrecondition);
  for (const int full : {ENOSPC, EDQUOT}) {
    EXPECT_EQ(folder.Cannot("open it", full).code, Code::kResourceExhausted);
  }
  EXPECT_EQ(folder.Cannot("open it", EACCES).code, Code::kPermissionDenied);
  EXPECT_THAT(
      folder.Cannot("make it", EROFS).text,
      StartsWith("cannot make it: Read-only file system (XDG_RUNTIME_DIR=/run/user/1000);"));
}

TEST(PrivateFolderTest, IsMadeForItsUserAlone) {
  std::string name = "/tmp/epd-private-XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const PrivateFolder folder(name.c_str(), geteuid());
  const mode_t before = umask(0277);
  EXPECT_TRUE(folder.Check().ok());
  EXPECT_FALSE(std::filesystem::exists(folder.path())) << "Check changes nothing";
  EXPECT_TRUE(folder.Make().ok()) << folder.Make().text;
  umask(before);
  struct stat made = {};
  ASSERT_EQ(stat(folder.path().c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07777, 0700u);
  EXPECT_TRUE(folder.Make().ok()) << "as it is";
  std::filesystem::remove_all(name);
  EXPECT_EQ(folder.Make().code, Code::kFailedPrecondition);
}

}  // namespace
}  // namespace epd
