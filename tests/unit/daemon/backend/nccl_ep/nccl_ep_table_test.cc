// Goal: the NCCL EP that a group would use is what is found at run time; one that is absent or something
// else is a reason, and never a crash.
#include "daemon/backend/nccl_ep/nccl_ep_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd::nccl_ep {
namespace {

using ::testing::HasSubstr;

TEST(NcclEpTableTest, NoLibraryIsAReasonThatNamesEveryPlace) {
  const Loaded loaded = Load({"/nowhere/libnccl_ep.so", "/elsewhere/libnccl_ep.so"});
  EXPECT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.path, "");
  EXPECT_THAT(loaded.problem, HasSubstr("/nowhere/libnccl_ep.so"));
  EXPECT_THAT(loaded.problem, HasSubstr("/elsewhere/libnccl_ep.so"));
}

TEST(NcclEpTableTest, AnotherLibraryIsAReason) {
  EXPECT_THAT(Load({"libm.so.6"}).problem, HasSubstr("is no NCCL EP"));
}

}  // namespace
}  // namespace epd::nccl_ep
