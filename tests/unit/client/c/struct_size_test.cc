// Goal: structs of older and newer callers are read, and nothing that a caller has set is left out in silence.
#include "client/c/struct_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace epd::client {
namespace {

struct Known {
  size_t struct_size;
  int64_t first;
  int64_t second;
};
struct Newer {
  Known known;
  int64_t third;
};

TEST(StructSizeTest, WhatAnOlderCallerDoesNotHaveIsZero) {
  const Known given = {offsetof(Known, second), 7, 8};
  Known read;
  ASSERT_TRUE(ReadStruct(&given, "args", &read).ok());
  EXPECT_EQ(read.first, 7);
  EXPECT_EQ(read.second, 0);
}

TEST(StructSizeTest, WhatANewerCallerHasLeftZeroIsNotMissed) {
  Newer given = {{sizeof given, 7, 8}, 0};
  Known read;
  ASSERT_TRUE(ReadStruct(&given.known, "args", &read).ok());
  EXPECT_EQ(read.second, 8);
}

TEST(StructSizeTest, WhatANewerCallerHasSetIsRefusedByName) {
  Newer given = {{sizeof given, 7, 8}, 1};
  Known read;
  const Status status = ReadStruct(&given.known, "args", &read);
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_THAT(status.message, testing::HasSubstr("args: the field at byte 24 is set"));
}

}  // namespace
}  // namespace epd::client
