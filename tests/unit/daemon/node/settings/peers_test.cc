// Goal: nodes that are given the same list, or Slurm's environment, agree on who coordinates.
#include "daemon/node/settings/peers.h"

#include "daemon/node/settings/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace epd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(PeersTest, NodeListsAreReadAsSlurmWritesThem) {
  EXPECT_THAT(*ExpandNodeList("gpu5"), ElementsAre("gpu5"));
  EXPECT_THAT(*ExpandNodeList("node[01-03,07],gpu5"),
              ElementsAre("node01", "node02", "node03", "node07", "gpu5"));
  EXPECT_THAT(*ExpandNodeList("r1-n[9-11]-ib"), ElementsAre("r1-n9-ib", "r1-n10-ib", "r1-n11-ib"));
  EXPECT_THAT(*ExpandNodeList("n[4294967295]"), ElementsAre("n4294967295"));
  for (const std::string bad :
       {"", "n[1-", "n[3-1]", "n[a]", "n[1][2]", "n[0-99999999]", "a,,b", "n[0-40000,0-40000]"})
    EXPECT_EQ(ExpandNodeList(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
}

TEST(PeersTest, TheFirstPeerCoordinates) {
  EXPECT_EQ(*FirstPeer("a:1,b:2", ""), "a:1");
  EXPECT_EQ(*FirstPeer("slurm:7400", "node[08-09]"), "node08:7400");
  EXPECT_EQ(FirstPeer("slurm:7400", "").status().code(), absl::StatusCode::kFailedPrecondition);
  for (const std::string bad : {"a", "a:", ":1", "a:99999", "a:1,"})
    EXPECT_THAT(FirstPeer(bad, "").status().ToString(), HasSubstr("expected host:port")) << bad;
}

TEST(PeersTest, ANodeKnowsItselfByNameAddressAndDomain) {
  EXPECT_TRUE(IsThisNode("epd-0.epd.default.svc:7400", {"epd-0"}));
  EXPECT_TRUE(IsThisNode("10.0.0.1:7400", {"x", "10.0.0.1"}));
  EXPECT_FALSE(IsThisNode("epd-01:7400", {"epd-0"}));
  EXPECT_FALSE(IsThisNode("b:7400", {"", "a"}));
}

MachineFacts Machine(const std::string& host) {
  MachineFacts facts = {host, "/run/epd", "/opt/epd/bin", uint64_t{8} << 30};
  facts.slurm_nodes = "node[08-09]";
  return facts;
}

std::string CoordinatorOf(const std::string& host, std::vector<std::string> args) {
  args.push_back("--listen=10.0.0.9:7400");
  const auto parsed = ParseSettings(args, Machine(host));
  return parsed.ok() ? parsed->settings.coordinator : parsed.status().ToString();
}

TEST(PeersTest, OneCommandLineServesAllNodes) {
  EXPECT_EQ(CoordinatorOf("node08", {"--peers=slurm:7400"}), "");
  EXPECT_EQ(CoordinatorOf("node09", {"--peers=slurm:7400"}), "node08:7400");
  EXPECT_EQ(CoordinatorOf("epd-0", {"--coordinator=epd-0.epd:7400"}), "");
  EXPECT_EQ(CoordinatorOf("epd-1", {"--coordinator=epd-0.epd:7400"}), "epd-0.epd:7400");
  EXPECT_EQ(CoordinatorOf("a", {"--peers=10.0.0.9:7400,b:7400"}), "");
  EXPECT_EQ(CoordinatorOf("a", {"--coordinator=a:7500"}), "a:7500") << "another epd of this host";
  EXPECT_THAT(CoordinatorOf("a", {"--peers=b:1", "--coordinator=a:1"}), HasSubstr("at most one"));
}

}  // namespace
}  // namespace epd
