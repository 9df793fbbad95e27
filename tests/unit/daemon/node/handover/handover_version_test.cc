// Goal: a program takes over what it understands, and refuses by name what it does not.
#include "daemon/node/handover/handover_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace epd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const HandoverPlace kPlace{"n", "/run/epd/epd.sock", "/run/epd/epd-grpc.sock", "", ""};

TEST(HandoverVersionTest, AnyMinorVersionIsTakenBothWays) {
  for (const auto& [writer, reader] : {std::pair<uint32_t, uint32_t>{0, 1}, {1, 0}, {7, 7}}) {
    EXPECT_TRUE(
        CheckVersion(MakeHeader({1, writer}, "0.1", kPlace), HandoverVersion{1, reader}).ok());
  }
}

TEST(HandoverVersionTest, AnotherMajorVersionIsRefusedWithBoth) {
  for (const uint32_t reader : {1, 3}) {
    const absl::Status refused =
        CheckVersion(MakeHeader({2, 5}, "0.9", kPlace), HandoverVersion{reader, 0});
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("epd 0.9"), HasSubstr("2.5"),
                                         HasSubstr(std::to_string(reader) + ".x")));
  }
}

TEST(HandoverVersionTest, WhatMustBeKnownIsRefusedByNameWhereItIsNot) {
  HandoverVersion writer{1, 4};
  writer.must_know = {"old thing", "new thing"};
  HandoverVersion reader{1, 3};
  reader.knows = {"old thing"};
  const v1::HandoverHeader header = MakeHeader(writer, "0.9", kPlace);
  const absl::Status refused = CheckVersion(header, reader);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("'new thing'"), HasSubstr("1.4"), HasSubstr("1.3")));
  reader.knows.push_back("new thing");
  EXPECT_TRUE(CheckVersion(header, reader).ok());
}

TEST(HandoverVersionTest, ThisSourceTakesWhatCameBeforeLandingArenasAndIsNotLeftToIt) {
  HandoverVersion before{1, 1};
  before.knows = before.must_know = {"slots_layout"};
  const HandoverVersion own = OfThisSource();
  EXPECT_TRUE(CheckVersion(MakeHeader(before, "0.1", kPlace), own).ok());
  EXPECT_TRUE(CheckVersion(MakeHeader(own, "0.1", kPlace), own).ok());
  EXPECT_THAT(CheckVersion(MakeHeader(own, "0.1", kPlace), before).message(),
              AllOf(HasSubstr("'landing_arenas'"), HasSubstr("1.1")));
}

TEST(HandoverVersionTest, ASettingThatOthersHoldOnToMayNotChange) {
  const v1::HandoverHeader header = MakeHeader({1, 0}, "0.1", kPlace);
  EXPECT_TRUE(CheckPlace(header, kPlace).ok());
  HandoverPlace other = kPlace;
  other.grpc_socket = "/tmp/other.sock";
  const absl::Status refused = CheckPlace(header, other);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("grpc_socket: got '/tmp/other.sock'"),
                                       HasSubstr("'/run/epd/epd-grpc.sock'")));
}

}  // namespace
}  // namespace epd
