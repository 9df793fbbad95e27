// Goal: every call has a role, and who has which follows from what the kernel, TLS or a proof say, and from nothing else.
#include "daemon/rpc/roles.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/epd/v1/cluster.pb.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {
namespace {

using testing::HasSubstr;

// The same call of each role.
constexpr const char* kRead = "Node/GetStatus";
constexpr const char* kOperate = "Node/CloseGroup";
constexpr const char* kNode = "Cluster/Sync";

std::string May(const Caller& caller, const RoleRules& rules) {
  std::string may;
  for (const char* method : {kRead, kOperate, kNode})
    absl::StrAppend(&may, may.empty() ? "" : " ", CheckRole(method, caller, rules).ok());
  return may;
}

TEST(RolesTest, TheTableNamesEveryMethodOfTheProtosAndNoOther) {
  std::set<std::string> methods;
  for (const auto* file :
       {v1::GetStatusRequest::descriptor()->file(), v1::NodeReport::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j)
        methods.insert(
            absl::StrCat(file->service(i)->name(), "/", file->service(i)->method(j)->name()));
    }
  }
  EXPECT_GE(methods.size(), 16U);
  std::set<std::string> listed;
  for (const MethodRole& row : kMethodRoles)
    EXPECT_TRUE(listed.insert(std::string(row.method)).second) << row.method;
  EXPECT_EQ(listed, methods);
}

TEST(RolesTest, AMethodWithoutARoleIsForNobody) {
  EXPECT_FALSE(CheckRole("Node/New", {.on_unix_socket = true}, {}).ok());
}

TEST(RolesTest, OnTheUnixSocketEpdsUserAndRootOperateAndOthersLook) {
  const RoleRules rules{.own_uid = 1000};
  EXPECT_EQ(May({.on_unix_socket = true, .uid = 1000}, rules), "1 1 0");
  EXPECT_EQ(May({.on_unix_socket = true, .uid = 0}, rules), "1 1 0");
  EXPECT_EQ(May({.on_unix_socket = true, .uid = 1001}, rules), "1 0 0");
}

TEST(RolesTest, WithoutTlsTcpIsForLookingAndForNodesThatProveWhoTheyAre) {
  EXPECT_EQ(May({}, {}), "1 0 0");
  EXPECT_EQ(May({.proven_node = "n1"}, {}), "1 0 1");
  EXPECT_THAT(std::string(CheckRole(kOperate, {}, {}).message()), HasSubstr("Unix socket"));
  EXPECT_THAT(std::string(CheckRole(kNode, {}, {}).message()), HasSubstr("set cluster_secret"));
  const Caller wrong{.no_proof = "another secret"};
  EXPECT_THAT(std::string(CheckRole(kNode, wrong, {}).message()), HasSubstr("another secret"));
  // What is listed is listed for certificates.
  EXPECT_EQ(May({.proven_node = "n1"}, {.operators = {"*"}, .nodes = {}}), "1 0 1");
}

TEST(RolesTest, WithTlsOperatorsAndNodesAreListedByName) {
  const RoleRules rules{.tls = true, .operators = {"alice", "ops-*"}, .nodes = {"n?", "*.epd.svc"}};
  EXPECT_EQ(May({.names = {"bob"}}, rules), "1 0 0");
  EXPECT_EQ(May({.names = {"alice"}}, rules), "1 1 0");
  EXPECT_EQ(May({.names = {"10.0.0.1", "ops-7"}}, rules), "1 1 0");
  EXPECT_EQ(May({.names = {"n1"}}, rules), "1 0 1");
  EXPECT_EQ(May({.names = {"epd-0.epd.svc"}}, rules), "1 0 1");
  EXPECT_EQ(May({.names = {"n1", "alice"}}, rules), "1 1 1");
  EXPECT_EQ(May({.names = {"n1"}, .proven_node = "n1"}, {.tls = true}), "1 0 0");
  const absl::Status refused = CheckRole(kOperate, {.names = {"bob", "b.b"}}, rules);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("bob, b.b"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("`operators`"));
}

TEST(RolesTest, ANodeIsTheOneOfItsCertificateOrItsProof) {
  const RoleRules tls{.tls = true, .nodes = {"n*", "*.svc"}};
  EXPECT_TRUE(CheckNodeName("n1", {.names = {"n1"}}, tls).ok());
  EXPECT_TRUE(CheckNodeName("n1", {.names = {"n1.cluster.local"}}, tls).ok());
  EXPECT_TRUE(CheckNodeName("epd-3", {.names = {"CN", "*.epd.svc"}}, tls).ok());
  EXPECT_FALSE(CheckNodeName("n2", {.names = {"n1"}}, tls).ok());
  EXPECT_FALSE(CheckNodeName("n1", {.names = {"n1x.cluster.local"}}, tls).ok());
  EXPECT_FALSE(CheckNodeName("bob", {.names = {"bob", "n1"}}, tls).ok()) << "bob is no node";
  EXPECT_TRUE(CheckNodeName("n1", {.proven_node = "n1"}, {}).ok());
  EXPECT_FALSE(CheckNodeName("n2", {.proven_node = "n1"}, {}).ok());
  EXPECT_FALSE(CheckNodeName("n1", {.names = {"n1"}}, {.nodes = {"n1"}}).ok());
}

}  // namespace
}  // namespace epd
