// Goal: metrics are served to nobody whom the operator has not let in.
#include "daemon/metrics/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

namespace epd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::string TokenFile(const std::string& content, mode_t mode = 0600) {
  const std::string path = testing::TempDir() + "/metrics_token";
  std::ofstream(path) << content;
  chmod(path.c_str(), mode);
  return path;
}

Settings Listening(const std::string& address, const std::string& token = "") {
  Settings settings;
  settings.metrics_listen = address;
  settings.metrics_token = token;
  return settings;
}

constexpr char kToken[] = "0123456789abcdef";

TEST(MetricsAccessTest, OnlyLoopbackNeedsNoToken) {
  for (const char* local : {"127.0.0.1:0", "[::1]:9400", "localhost:9400"})
    EXPECT_TRUE(ReadMetricsAccess(Listening(local)).ok()) << local;
  for (const char* reached : {"10.0.0.1:9400", "0.0.0.0:9400", "node7:9400", "unix7:9400"})
    EXPECT_EQ(ReadMetricsAccess(Listening(reached)).status().code(), Code::kFailedPrecondition)
        << reached;
}

TEST(MetricsAccessTest, ATokenLeavesTheMachineOverTlsUnlessTheNetworkIsTrusted) {
  Settings outside = Listening("10.0.0.1:9400", TokenFile(kToken));
  EXPECT_THAT(ReadMetricsAccess(outside).status().message(), HasSubstr("metrics_cert"));
  outside.insecure = "yes";
  EXPECT_TRUE(ReadMetricsAccess(outside).ok());
  outside.insecure = "no";
  outside.metrics_cert = "c.pem";
  EXPECT_EQ(ReadMetricsAccess(outside).status().code(), Code::kInvalidArgument);
  outside.metrics_key = "k.pem";
  EXPECT_TRUE(ReadMetricsAccess(outside).ok());
}

TEST(MetricsAccessTest, ATokenThatOthersCanReadOrGuessIsRefused) {
  EXPECT_EQ(ReadMetricsAccess(Listening("127.0.0.1:1", TokenFile(kToken, 0644))).status().code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(ReadMetricsAccess(Listening("127.0.0.1:1", TokenFile("short\n"))).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ReadMetricsAccess(Listening("127.0.0.1:1", "/nonexistent")).status().code(),
            Code::kNotFound);
}

TEST(MetricsAccessTest, WithATokenOnlyTheTokenIsLetIn) {
  const MetricsAccess access{.token = kToken};
  EXPECT_EQ(Admit(access, "node7:9400", "Bearer 0123456789abcdef"), Admission::kAllowed);
  for (const char* wrong :
       {"", "0123456789abcdef", "Bearer 0123456789abcdeF", "Bearer 0123456789abcde",
        "Bearer 0123456789abcdef0", "Basic 0123456789abcdef"})
    EXPECT_EQ(Admit(access, "localhost", wrong), Admission::kNoToken) << wrong;
}

TEST(MetricsAccessTest, WithoutATokenNoOtherNameIsServed) {
  const MetricsAccess access{.local = true};
  for (const char* host : {"localhost:9400", "127.0.0.1:9400", "[::1]:9400", "127.8.8.8"})
    EXPECT_EQ(Admit(access, host, ""), Admission::kAllowed) << host;
  for (const char* host : {"", "evil.example:9400", "unix.evil.example", "127.0.0.1.evil.example"})
    EXPECT_EQ(Admit(access, host, ""), Admission::kWrongHost) << host;
}

}  // namespace
}  // namespace epd
