// Goal: NCCL is what is found at run time; where there is none, the reason is said and nothing else
// suffers.
#include "daemon/backend/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/backend/sha256.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kFake[] = "tests/unit/daemon/backend/fake_libnccl.so";

TEST(NcclCandidates, AnExplicitPathIsTheOnlyOne) {
  EXPECT_THAT(NcclCandidates("/opt/libnccl.so.2", "/usr/bin/epd-worker"),
              ElementsAre("/opt/libnccl.so.2"));
}

TEST(NcclCandidates, TheLoadersOwnPlacesComeFirst) {
  EXPECT_EQ(NcclCandidates("", "/usr/bin/epd-worker").front(), "libnccl.so.2");
}

// What deploy/setup leaves: a link beside the binary's folder, and what pip installed.
TEST(NcclCandidates, TheVirtualEnvironmentOfTheBinaryComesLast) {
  const std::filesystem::path venv = std::filesystem::path(testing::TempDir()) / "venv";
  const std::string linked = venv / "bin/../lib/libnccl.so.2";
  const std::string wheel =
      venv / "bin/../lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
  std::filesystem::create_directories(venv / "bin");
  for (const std::string& path : {linked, wheel}) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << "no library";
  }
  const std::vector<std::string> found = NcclCandidates("", venv / "bin/epd-worker");
  ASSERT_GE(found.size(), 3u);
  EXPECT_EQ(found[found.size() - 2], linked);
  EXPECT_EQ(found.back(), wheel);
  EXPECT_THAT(NcclCandidates("", "/nowhere/bin/epd-worker"), Not(Contains(linked)));
}

// The wheel of epd brings its programs inside the package, and NVIDIA's puts its library beside that.
TEST(NcclCandidates, WheelsBesideTheInstalledPackageComeLast) {
  const std::filesystem::path venv = std::filesystem::path(testing::TempDir()) / "wheels";
  const std::filesystem::path packages = venv / "lib/python3.12/site-packages";
  const std::filesystem::path linked = venv / "lib/libnccl.so.2";
  const std::filesystem::path wheel = packages / "nvidia/nccl/lib/libnccl.so.2";
  for (const std::filesystem::path& path : {linked, wheel, packages / "epd/bin/epd-worker"}) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "no library";
  }
  const std::vector<std::string> found = NcclCandidates("", packages / "epd/bin/epd-worker");
  ASSERT_GE(found.size(), 3u);
  EXPECT_TRUE(std::filesystem::equivalent(found[found.size() - 2], linked));
  EXPECT_TRUE(std::filesystem::equivalent(found.back(), wheel));
}

// Where a bundle was unpacked, in /tmp for example, the folder above it may be anybody's.
TEST(NcclCandidates, NothingIsTakenFromAboveAnUnpackedBundle) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "shared";
  for (const char* planted : {"nvidia/nccl/lib", "packages/nvidia/nccl/lib", "epd/bin"}) {
    std::filesystem::create_directories(folder / planted);
    std::ofstream(folder / planted / "libnccl.so.2") << "no library";
  }
  const size_t anywhere = NcclCandidates("", "/nowhere/bin/epd-worker").size();
  EXPECT_EQ(NcclCandidates("", folder / "epd/bin/epd-worker").size(), anywhere);
  EXPECT_EQ(NcclCandidates("", folder / "packages/epd/bin/epd-worker").size(), anywhere);
}

TEST(NcclLibrary, FallsBackToTheOneInTheVirtualEnvironment) {
  const std::filesystem::path venv = std::filesystem::path(testing::TempDir()) / "other";
  std::filesystem::create_directories(venv / "bin");
  std::filesystem::create_directories(venv / "lib");
  std::filesystem::copy_file(kFake, venv / "lib/libnccl.so.2",
                             std::filesystem::copy_options::overwrite_existing);
  const std::vector<std::string> found = NcclCandidates("", venv / "bin/epd-worker");
  const NcclLibrary library({"/nowhere/libnccl.so.2", found.back()});
  EXPECT_EQ(library.version(), "2.28.9") << library.problem();
}

TEST(NcclLibrary, TakesTheFirstThatOpensAndSaysWhich) {
  const NcclLibrary library({"/nowhere/libnccl.so.2", kFake});
  EXPECT_EQ(library.version(), "2.28.9");
  EXPECT_THAT(library.path(), EndsWith("fake_libnccl.so"));
  EXPECT_THAT(library.problem(), IsEmpty());
}

TEST(NcclLibrary, MakesIdsOfTheRightLengthThatDiffer) {
  const NcclLibrary library({kFake});
  const std::string first = library.MakeUniqueId().value();
  EXPECT_EQ(first.size(), kNcclUniqueIdBytes);
  EXPECT_NE(first, library.MakeUniqueId().value());
}

TEST(NcclLibrary, SaysWhyThereIsNone) {
  const NcclLibrary library({"/nowhere/libnccl.so.2", "libc.so.6"});
  EXPECT_THAT(library.version(), IsEmpty());
  EXPECT_THAT(library.problem(),
              AllOf(HasSubstr("/nowhere/libnccl.so.2"), HasSubstr("libc.so.6: is no NCCL")));
  EXPECT_EQ(library.MakeUniqueId().status().code(), absl::StatusCode::kUnavailable);
}

TEST(NcclLibrary, PassesOnNcclsOwnReason) {
  setenv("FAKE_NCCL_FAILS", "1", 1);
  const absl::Status status = NcclLibrary({kFake}).MakeUniqueId().status();
  unsetenv("FAKE_NCCL_FAILS");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("failed with 3"), HasSubstr("no network interface")));
}

TEST(Sha256, IsTheOneOfTheStandard) {
  const std::string digest = Sha256("abc").value();
  EXPECT_EQ(digest.size(), 32u);
  EXPECT_EQ(digest.substr(0, 4), std::string("\xba\x78\x16\xbf"));
  EXPECT_NE(digest, Sha256("abd").value());
}

}  // namespace
}  // namespace epd
