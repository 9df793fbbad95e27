// Goal: whoever calls a kernel gets the kernel's own code, also when rows are more than there are slots.
#include "daemon/backend/kernel_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace epd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(KernelStatusTest, EveryCodeStaysWhatItIs) {
  for (const Code code :
       {Code::kInvalidArgument, Code::kAborted, Code::kResourceExhausted, Code::kDataLoss}) {
    KernelError error;
    error.code = code;
    error.fault = KernelFault::kOverflow;
    error.rank = 3;
    error.got = 12;
    error.expected = 10;
    const absl::Status status = ToStatus(error, "output of rank 1: ");
    EXPECT_EQ(absl::StatusCodeToString(status.code()), CodeName(code));
    EXPECT_THAT(std::string(status.message()), StartsWith("output of rank 1: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("12"));
  }
  EXPECT_TRUE(ToStatus(KernelError()).ok());
}

TEST(CodeTest, NumbersFromOutsideAreCodesOrUnknown) {
  for (int number = 0; number < kNumCodes; ++number) {
    EXPECT_EQ(static_cast<int>(CodeFromNumber(number)), number);
    EXPECT_EQ(CodeName(CodeFromNumber(number)),
              absl::StatusCodeToString(static_cast<absl::StatusCode>(number)));
  }
  EXPECT_EQ(CodeFromNumber(-1), Code::kUnknown);
  EXPECT_EQ(CodeFromNumber(kNumCodes), Code::kUnknown);
}

}  // namespace
}  // namespace epd
