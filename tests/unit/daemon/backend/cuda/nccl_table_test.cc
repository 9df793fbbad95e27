// Goal: the NCCL that a GPU worker would use is what is found at run time; one that is absent or something
// else is a reason, and never a crash.
#include "daemon/backend/cuda/members/nccl_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace epd::cuda {
namespace {

using ::testing::HasSubstr;

TEST(NcclTable, NoLibraryIsAReason) {
  const LoadedNccl nccl = LoadNccl("/nowhere/libnccl.so.2");
  EXPECT_FALSE(nccl.ok());
  EXPECT_THAT(nccl.problem, HasSubstr("/nowhere/libnccl.so.2"));
}

TEST(NcclTable, AnotherLibraryIsAReasonThatNamesWhatItLacks) {
  const LoadedNccl nccl = LoadNccl("libm.so.6");
  EXPECT_THAT(nccl.problem, HasSubstr("lacks ncclGetVersion"));
  EXPECT_THAT(nccl.problem, HasSubstr("ncclCommAbort"));
}

// deploy/setup installs one and says where.
TEST(NcclTable, TheInstalledOneHasEveryCall) {
  const char* path = std::getenv("EPD_LIBNCCL");
  if (path == nullptr) GTEST_SKIP() << "no libnccl was provided: run deploy/setup";
  const LoadedNccl nccl = LoadNccl(path);
  EXPECT_EQ(nccl.problem, "");
  EXPECT_GE(nccl.version, 21800);
  EXPECT_NE(nccl.table.init_rank, nullptr);
  EXPECT_NE(nccl.table.abort, nullptr);
}

}  // namespace
}  // namespace epd::cuda
