// Goal: an error's text says what was got, what was expected, where, and what to do, in one line.
#include "kernels/kernel_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "kernels/kernel_fault.h"

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Format(const KernelError& error) {
  char buffer[512];
  const std::size_t length = FormatKernelError(error, buffer, sizeof(buffer));
  EXPECT_EQ(length, std::strlen(buffer));
  return buffer;
}

TEST(KernelErrorTest, NamesPlaceValuesAndAdvice) {
  const KernelError error = AtRoute(Invalid(KernelFault::kExpertIndex, 9, 8), 3, 1);
  EXPECT_EQ(Format(error),
            "expert index in topk_idx token=3 k=1: got 9, must be below 8; use an index below the "
            "number of experts, or a negative one for no route");
  EXPECT_FALSE(error.ok());
}

TEST(KernelErrorTest, KeepsTheSignOfNegativeValues) {
  EXPECT_THAT(Format(Invalid(KernelFault::kCapacity, std::int32_t{-4}, 10)),
              AllOf(HasSubstr("got -4"), HasSubstr("10")));
}

TEST(KernelErrorTest, PrintsIdsInHex) {
  EXPECT_THAT(Format(Invalid(KernelFault::kPlanGroup, 0xabcULL, 0xdefULL)),
              AllOf(HasSubstr("0x0000000000000abc"), HasSubstr("0x0000000000000def")));
}

TEST(KernelErrorTest, EveryFaultHasItsOwnText) {
  for (int i = 1; i <= static_cast<int>(KernelFault::kOverflow); ++i) {
    const KernelError error = AtRank(Invalid(static_cast<KernelFault>(i), 1, 2), 5);
    EXPECT_THAT(Format(error), testing::Not(HasSubstr("unknown kernel fault"))) << "fault " << i;
  }
  EXPECT_EQ(Format({}), "ok");
}

TEST(KernelErrorTest, ListsTheSimdLevelsOfThisMachine) {
  KernelError error = Invalid(KernelFault::kSimdLevel, 0, 0);
  error.text = "avx9000";
  EXPECT_THAT(Format(error), AllOf(HasSubstr("'avx9000'"), HasSubstr("auto, scalar")));
}

TEST(KernelErrorTest, TruncatesAndSaysHowMuchThereIs) {
  const KernelError error = Invalid(KernelFault::kTopK, 0, 128);
  const std::string whole = Format(error);
  char small[8];
  EXPECT_EQ(FormatKernelError(error, small, sizeof(small)), whole.size());
  EXPECT_EQ(std::string(small), whole.substr(0, 7));
  EXPECT_EQ(FormatKernelError(error, nullptr, 0), whole.size());
}

TEST(KernelErrorTest, CodesHaveStableNames) {
  EXPECT_STREQ(CodeName(Code::kOk), "OK");
  EXPECT_STREQ(CodeName(Code::kInvalidArgument), "INVALID_ARGUMENT");
  EXPECT_STREQ(CodeName(Code::kAborted), "ABORTED");
  EXPECT_STREQ(CodeName(Code::kResourceExhausted), "RESOURCE_EXHAUSTED");
  EXPECT_STREQ(CodeName(Code::kDataLoss), "DATA_LOSS");
}

}  // namespace
}  // namespace epd
