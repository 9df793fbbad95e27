// Goal: a SIMD level is the best of the machine unless forced, and one that is not there is
// refused.
#include "kernels/simd.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace epd {
namespace {

class SimdTest : public testing::Test {
 protected:
  ~SimdTest() override {
    unsetenv("EPD_SIMD");
    EXPECT_TRUE(SetSimdLevelByName("auto").ok());
  }
};

TEST_F(SimdTest, IsTheBestUnlessForced) {
  EXPECT_EQ(ActiveSimdLevel(), BestSimdLevel());
  EXPECT_TRUE(SimdLevelSupported(BestSimdLevel()));
  EXPECT_TRUE(SetSimdLevelByName("scalar").ok());
  EXPECT_EQ(ActiveSimdLevel(), SimdLevel::kScalar);
  EXPECT_TRUE(SetSimdLevelByName("auto").ok());
  EXPECT_EQ(ActiveSimdLevel(), BestSimdLevel());
}

TEST_F(SimdTest, EveryLevelIsTakenOrRefusedByItsName) {
  for (const SimdLevel level : kAllSimdLevels) {
    const KernelError error = SetSimdLevelByName(SimdLevelName(level));
    EXPECT_EQ(error.ok(), SimdLevelSupported(level)) << SimdLevelName(level);
    if (error.ok()) {
      EXPECT_EQ(ActiveSimdLevel(), level);
    }
  }
}

TEST_F(SimdTest, UnknownNamesChangeNothing) {
  ASSERT_TRUE(SetSimdLevel(SimdLevel::kScalar).ok());
  for (const char* name : {"", "AVX2", "avx1024", static_cast<const char*>(nullptr)}) {
    const KernelError error = SetSimdLevelByName(name);
    EXPECT_EQ(error.code, Code::kInvalidArgument);
    EXPECT_EQ(error.fault, KernelFault::kSimdLevel);
    EXPECT_EQ(ActiveSimdLevel(), SimdLevel::kScalar);
  }
}

TEST_F(SimdTest, TheEnvironmentDoesNotCount) {
  setenv("EPD_SIMD", "scalar", 1);
  EXPECT_EQ(ActiveSimdLevel(), BestSimdLevel());
}

}  // namespace
}  // namespace epd
