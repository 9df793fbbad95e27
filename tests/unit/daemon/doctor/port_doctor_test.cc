// Goal: an open port, one that nobody listens on, one behind which somebody hangs up and a name that does not exist are told
// apart, on real sockets; what firewalls do (no answer, an ICMP error) by what connect() says of it.
#include "daemon/doctor/port_doctor.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "daemon/core/unique_fd.h"

namespace epd {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Listens on loopback; its port is free again when it is gone.
struct Listener {
  UniqueFd fd{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address;

  Listener() {
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    auto* const any = reinterpret_cast<sockaddr*>(&place);
    EXPECT_EQ(bind(fd.get(), any, size), 0);
    EXPECT_EQ(listen(fd.get(), 8), 0);
    EXPECT_EQ(getsockname(fd.get(), any, &size), 0);
    address = absl::StrCat("127.0.0.1:", ntohs(place.sin_port));
  }
};

TEST(PortDoctorTest, WhatIsThereIsToldApart) {
  const Listener open;
  const Listener hangs_up;
  std::string refused;
  {
    const Listener gone;
    refused = gone.address;
  }
  std::thread hanging_up([&] {
    const UniqueFd accepted(accept(hangs_up.fd.get(), nullptr, nullptr));
    // A reset instead of an end.
    const linger at_once = {1, 0};
    setsockopt(accepted.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  });
  const v1::GetDoctorResponse said = TryPorts({{open.address, "epd of node b"},
                                               {refused, "epd of node c"},
                                               {hangs_up.address, "epd of node d"},
                                               {"no-such-host.invalid:1", "epd of node e"}},
                                              absl::Seconds(30));
  hanging_up.join();
  ASSERT_EQ(said.findings_size(), 4);
  EXPECT_TRUE(said.findings(0).ok()) << said.findings(0).found();
  EXPECT_EQ(said.findings(0).what(), absl::StrCat("port ", open.address, " (epd of node b)"));
  EXPECT_THAT(said.findings(1).found(), HasSubstr("refused: "));
  EXPECT_THAT(said.findings(2).found(), HasSubstr("reset: "));
  EXPECT_THAT(said.findings(3).found(), HasSubstr("unknown: "));
}

TEST(PortDoctorTest, WhatAFirewallDidIsToldByWhatConnectSays) {
  EXPECT_EQ(ResultOfConnect(0), PortResult::kOpen);
  EXPECT_EQ(ResultOfConnect(ECONNREFUSED), PortResult::kRefused);
  EXPECT_EQ(ResultOfConnect(ETIMEDOUT), PortResult::kTimedOut);
  EXPECT_EQ(ResultOfConnect(ECONNRESET), PortResult::kReset);
  for (const int error : {EHOSTUNREACH, ENETUNREACH, EACCES, EPERM})
    EXPECT_EQ(ResultOfConnect(error), PortResult::kUnreachable) << error;
}

// 192.0.2.0/24 is nobody's (RFC 5737): either nothing comes back, or a router says that there is no way.
TEST(PortDoctorTest, AnAddressThatAnswersNothingEndsInTime) {
  const v1::GetDoctorResponse said = TryPorts({{"192.0.2.1:9", "epd of node b"}}, absl::Seconds(1));
  ASSERT_EQ(said.findings_size(), 1);
  EXPECT_FALSE(said.findings(0).ok());
  EXPECT_FALSE(said.findings(0).fix().empty());
}

TEST(PortDoctorTest, EveryProblemHasAFixOfItsOwn) {
  std::set<std::string> fixes;
  for (const PortResult result :
       {PortResult::kRefused, PortResult::kTimedOut, PortResult::kUnreachable, PortResult::kReset,
        PortResult::kUnknownName}) {
    const v1::Finding finding = DiagnosePort({"h:1", "epd of node b"}, result, "why");
    EXPECT_FALSE(finding.ok());
    EXPECT_THAT(finding.found(), HasSubstr("(why)"));
    fixes.insert(finding.fix());
  }
  EXPECT_EQ(fixes.size(), 5u);
}

TEST(PortDoctorTest, PortsTravelAsAnArgument) {
  const std::vector<PortToTry> ports = {{"[::1]:7400", "epd of node a=b"}, {"h:1", ""}};
  EXPECT_THAT(PortsFromText(PortsToText(ports)), ElementsAreArray(ports));
  EXPECT_TRUE(PortsFromText("").empty());
}

}  // namespace
}  // namespace epd
