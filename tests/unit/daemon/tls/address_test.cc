// Goal: an address that nobody can be reached at is known before it is used.
#include "daemon/tls/address.h"

#include "gtest/gtest.h"

namespace epd {
namespace {

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

}  // namespace
}  // namespace epd
