// Goal: other nodes are told an address that they can reach, and never one where a stranger could
// read rows along.
#include "daemon/node/workers/wire_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(WireAddressTest, AloneThereIsNone) {
  EXPECT_THAT(ChooseWireAddress(Settings()).listen, IsEmpty());
  EXPECT_THAT(ChooseWireAddress(Settings()).problem, IsEmpty());
}

TEST(WireAddressTest, IsWhatWasAskedForElseTheHostOfListenElseTheWayToTheOthers) {
  Settings settings;
  settings.rendezvous = "etcd://127.0.0.1:2379,127.0.0.2:2379/training";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "127.0.0.1:0");
  settings.rendezvous = "";
  settings.coordinator = "127.0.0.1:7400";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "127.0.0.1:0");
  settings.coordinator = "name.example:7400";  // The worker asks the resolver.
  EXPECT_EQ(ChooseWireAddress(settings).listen, "towards-loopback:name.example:7400");
  settings.insecure = "yes";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "towards:name.example:7400");
  settings.listen = "10.1.2.3:7400";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "10.1.2.3:0");
  settings.listen = "[fd00::3]:7400";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "[fd00::3]:0");
  settings.wire_listen = "10.9.2.3:7500";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "10.9.2.3:7500");
  EXPECT_THAT(ChooseWireAddress(settings).advertise, IsEmpty());
}

TEST(WireAddressTest, EachWorkerHasTwoPortsOfItsOwn) {
  Settings settings;
  settings.insecure = "yes";
  settings.wire_listen = "10.9.2.3:7500";
  EXPECT_EQ(ChooseWireAddress(settings, WorkerName{0}).listen, "10.9.2.3:7502");
  EXPECT_EQ(ChooseWireAddress(settings, WorkerName{3}).listen, "10.9.2.3:7508");
  settings.wire_listen = "10.9.2.3:0";
  EXPECT_EQ(ChooseWireAddress(settings, WorkerName{3}).listen, "10.9.2.3:0");
}

TEST(WireAddressTest, AnyAddressIsAdvertisedByName) {
  Settings settings;
  settings.tls_ca = "ca.pem";
  settings.listen = "0.0.0.0:7400";
  settings.advertise = "epd-1.epd:7400";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "0.0.0.0:0");
  EXPECT_EQ(ChooseWireAddress(settings).advertise, "epd-1.epd");
  settings.advertise = "";
  settings.coordinator = "127.0.0.1:7400";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "127.0.0.1:0");
}

TEST(WireAddressTest, WithoutTlsOnlyTheLoopbackIsUsed) {
  Settings settings;
  settings.insecure = "no";
  for (const char* open : {"a.name:7400", "10.0.0.1:7400", "[2001:db8::1]:7400"}) {
    settings.listen = open;
    const WireAddress wire = ChooseWireAddress(settings);
    EXPECT_THAT(wire.listen, IsEmpty());
    EXPECT_THAT(wire.problem, HasSubstr("set tls_ca"));
  }
  settings.insecure = "yes";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "[2001:db8::1]:0");
  settings.insecure = "no";
  settings.tls_ca = "ca.pem";
  EXPECT_EQ(ChooseWireAddress(settings).listen, "[2001:db8::1]:0");
}

// Of [fe80::2%veth1] others know no veth1.
TEST(CheckAddressesTest, ALinkLocalAddressIsNotToldToOthers) {
  const auto code = [](const Settings& settings) { return CheckAddresses(settings).code(); };
  Settings settings;
  settings.insecure = "yes";
  settings.listen = "[fe80::2%lo]:7400";
  const absl::Status listen = CheckAddresses(settings);
  EXPECT_EQ(listen.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(listen.message()),
              testing::AllOf(HasSubstr("listen: got '[fe80::2%lo]:7400'"), HasSubstr("zone (lo)"),
                             HasSubstr("set advertise")));
  settings.advertise = "fe80::3";
  EXPECT_EQ(code(settings), absl::StatusCode::kFailedPrecondition) << "nor without a zone";
  settings.advertise = "[fd00::3]:7400";
  EXPECT_EQ(code(settings), absl::StatusCode::kFailedPrecondition)
      << "rows come in at listen's host";
  settings.wire_listen = "[fe80::2%lo]:7410";
  EXPECT_THAT(std::string(CheckAddresses(settings).message()), HasSubstr("set wire_listen"));
  settings.wire_listen = "[fd00::3]:7410";
  EXPECT_EQ(CheckAddresses(settings), absl::OkStatus());
  settings = Settings();
  settings.listen = "0.0.0.0:7400";
  EXPECT_EQ(CheckAddresses(settings), absl::OkStatus());
}

TEST(CheckAddressesTest, AnAddressToListenAtMustBeOneHere) {
  for (std::string Settings::*address :
       {&Settings::listen, &Settings::wire_listen, &Settings::metrics_listen}) {
    Settings settings;
    settings.*address = "[fe80::1%nosuch0]:7400";
    const absl::Status bad = CheckAddresses(settings);
    EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(bad.message()),
                testing::AllOf(HasSubstr("listen: got '[fe80::1%nosuch0]:7400'"),
                               HasSubstr("nosuch0, is no network interface")));
  }
}

TEST(CheckAddressesTest, AnAddressToCallMustBeOneHere) {
  Settings settings;
  settings.coordinator = "[fe80::1%nosuch0]:7400";
  const absl::Status coordinator = CheckAddresses(settings);
  EXPECT_EQ(coordinator.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(coordinator.message()), HasSubstr("coordinator: got '[fe80::1%nosuch0]"));
  settings.coordinator = "";
  settings.rendezvous = "etcd://[fe80::1%nosuch0]:2379,[fe80::2]:2379/x";
  EXPECT_EQ(CheckAddresses(settings).code(), absl::StatusCode::kInvalidArgument);
  settings.rendezvous = "etcd://[fe80::1%nosuch0]:2379,127.0.0.1:2379/x";
  EXPECT_EQ(CheckAddresses(settings), absl::OkStatus()) << "there is another one";
}

}  // namespace
}  // namespace epd
