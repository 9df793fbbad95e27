// Goal: an address that nobody can be reached at is known before it is used.
#include "daemon/tls/address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::HasSubstr;

TEST(AddressTest, HostAndPortAreBothThereAndThePortIsOne) {
  for (const char* good : {"a:1", "10.0.0.1:65535", "[::1]:7400", "epd-0.epd.default.svc:7400"})
    EXPECT_TRUE(IsHostPort(good, 1)) << good;
  for (const char* bad : {"", ":", "a", "a:", ":1", "a:0", "a:65536", "a:99999999999", "a:+1",
                          "a:1x", "::1:7400", "[]:7400", "a b:1", "a,b:1", "etcd://a:1"})
    EXPECT_FALSE(IsHostPort(bad, 1)) << bad;
  EXPECT_TRUE(IsHostPort("a:0", 0));
  EXPECT_FALSE(IsHostPort("a:65535", 0, 65534));
}

TEST(AddressTest, APortThatWasLeftOpenIsKeptAndOneThatWasAskedForIsNot) {
  EXPECT_EQ(KeepPort("10.0.0.1:0", "10.0.0.1:7400"), "10.0.0.1:7400");
  EXPECT_EQ(KeepPort("[::1]:0", "[::1]:7400"), "[::1]:7400");
  EXPECT_EQ(KeepPort("10.0.0.1:7401", "10.0.0.1:7400"), "10.0.0.1:7401");
  EXPECT_EQ(KeepPort("10.0.0.2:0", "10.0.0.1:7400"), "10.0.0.2:0");
  EXPECT_EQ(KeepPort("10.0.0.1:0", ""), "10.0.0.1:0");
  EXPECT_EQ(KeepPort("", "10.0.0.1:7400"), "");
}

TEST(AddressTest, AZoneDoesNotChangeWhatAnAddressIs) {
  for (const char* local : {"fe80::1", "fe80::1%eth0", "febf::1%2"})
    EXPECT_TRUE(IsLinkLocal(local)) << local;
  for (const char* other : {"fd00::1", "::1%lo", "169.254.1.1", "fe80.example", ""})
    EXPECT_FALSE(IsLinkLocal(other)) << other;
  EXPECT_EQ(ZoneOf("fe80::1%eth0"), "eth0");
  EXPECT_EQ(ZoneOf("fe80::1"), "");
  EXPECT_TRUE(IsLoopback("::1%lo"));
  EXPECT_TRUE(IsNumeric("fe80::1%eth0"));
}

TEST(AddressTest, WhatCannotBeDialledOrBoundHereIsToldWhy) {
  for (const char* fine : {"127.0.0.1", "10.0.0.1", "name.example", "localhost"})
    EXPECT_EQ(WhyNotDialled(fine), "") << fine;
  EXPECT_EQ(WhyNotBound("127.0.0.1"), "");
  EXPECT_EQ(WhyNotBound("0.0.0.0"), "");
  EXPECT_EQ(WhyNotBound("192.0.2.1"), "it is no address of this machine");
  EXPECT_THAT(WhyNotBound("nosuch.invalid"), HasSubstr("it has no address here"));
  const std::string off = WhyNotDialled("fd00::1");
  if (off.empty()) {
    EXPECT_THAT(WhyNotDialled("fe80::1"), HasSubstr("needs a zone"));
    EXPECT_THAT(WhyNotDialled("fe80::1%nosuch0"), HasSubstr("nosuch0, is no network interface"));
    EXPECT_EQ(WhyNotDialled("fe80::1%lo"), "");
    EXPECT_EQ(WhyNotDialled("fe80::1%1"), "");
  } else {
    EXPECT_THAT(off, HasSubstr("IPv6 is off on this machine"));
  }
}

}  // namespace
}  // namespace epd
