// Goal: the next program gets the state as it was written, or a word about what it got instead.
#include "daemon/node/handover/handover_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/node/handover/handover_fields.h"

namespace epd {
namespace {

using testing::HasSubstr;

constexpr char kVariable[] = "EPD_HANDOVER_FD";

TEST(HandoverMemoryTest, IsReadOnceByTheProgramThatItIsFor) {
  v1::Handover written;
  written.set_incarnation(7);
  written.set_wire_secret(std::string(300'000, 's'));
  absl::StatusOr<UniqueFd> state = WriteHandover(written);
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(write(state->get(), "x", 1), -1) << "it is sealed";
  setenv(kVariable, absl::StrCat(state->release()).c_str(), 1);
  const absl::StatusOr<std::optional<v1::Handover>> read = TakeHandover();
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->SerializeAsString(), written.SerializeAsString());
  EXPECT_EQ(std::getenv(kVariable), nullptr);
  EXPECT_FALSE(TakeHandover()->has_value());
}

TEST(HandoverMemoryTest, WhatIsNoSealedMemoryIsNotTouched) {
  const UniqueFd other(eventfd(0, EFD_CLOEXEC));
  for (const std::string& number :
       {absl::StrCat(other.get()), std::string("x"), std::string("1")}) {
    setenv(kVariable, number.c_str(), 1);
    const auto read = TakeHandover();
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(read.status().message(), HasSubstr(absl::StrCat("got '", number, "'")));
  }
  EXPECT_EQ(fcntl(other.get(), F_GETFD), FD_CLOEXEC);
}

TEST(HandoverMemoryTest, AProgramThatCannotRunLeavesThisOneAsItWas) {
  const absl::StatusOr<UniqueFd> state = WriteHandover({});
  const absl::Status failed = RunReplacement("/nowhere/epd", {}, *state);
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(failed.message(), HasSubstr("/nowhere/epd"));
  EXPECT_EQ(fcntl(state->get(), F_GETFD), FD_CLOEXEC);
}

TEST(HandoverFieldsTest, DescriptorsSurviveWhenTheyAreToldAndAreTakenOnce) {
  const UniqueFd kept(eventfd(0, EFD_CLOEXEC));
  OutgoingFds out;
  EXPECT_EQ(out.Put(UniqueFd()), 0);
  const int number = out.Put(kept);
  const UniqueFd other(eventfd(0, 0));
  out.SetInherited(true);
  EXPECT_EQ(fcntl(number, F_GETFD), 0);
  EXPECT_EQ(fcntl(other.get(), F_GETFD), FD_CLOEXEC);
  const int copy = dup(number);
  IncomingFds in;
  const std::shared_ptr<UniqueFd> first = in.Share(copy);
  EXPECT_EQ(first, in.Share(copy));
  in.Finish();
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(fcntl(copy, F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(in.status().ok());
  EXPECT_FALSE(in.Take(copy).valid());
  EXPECT_THAT(in.status().message(), HasSubstr("named twice"));
  IncomingFds none;
  EXPECT_FALSE(none.Take(4000).valid());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kDataLoss);
}

TEST(HandoverFieldsTest, TimesComeBackAsTheyWere) {
  for (const absl::Time time : {absl::InfinitePast(), absl::InfiniteFuture(), absl::UnixEpoch(),
                                absl::FromUnixNanos(123'456'789'012'345)}) {
    EXPECT_EQ(GetTime(PutTime(time)), time);
  }
}

}  // namespace
}  // namespace epd
