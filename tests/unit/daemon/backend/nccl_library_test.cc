// Goal: NCCL is what is found at run time; where there is none, the reason is said and nothing else
// suffers.
#include "daemon/backend/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "daemon/backend/sha256.h"

namespace epd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFake[] = "tests/unit/daemon/backend/fake_libnccl.so";

TEST(NcclCandidates, AnExplicitPathIsTheOnlyOne) {
  EXPECT_THAT(NcclCandidates("/opt/libnccl.so.2", "/usr/bin/epd-worker"),
              ElementsAre("/opt/libnccl.so.2"));
}

TEST(NcclCandidates, TheLoadersOwnPlacesComeFirst) {
  EXPECT_EQ(NcclCandidates("", "/usr/bin/epd-worker").front(), "libnccl.so.2");
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
