// Who may call what over gRPC: three roles, and the one table that gives each call its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace epd {

enum class Role {
  kRead,     // Looks.
  kOperate,  // Makes, drains and ends groups.
  kNode,     // Is one of the cluster's epds.
};

struct MethodRole {
  absl::string_view method;  // "Service/Method" of package epd.v1.
  Role role;
};

// Health and reflection are for whoever may read.
inline constexpr MethodRole kMethodRoles[] = {
    {"Node/GetStatus", Role::kRead},
    {"Node/ListGroups", Role::kRead},
    {"Node/ListSessions", Role::kRead},
    {"Node/ListRanks", Role::kRead},
    {"Node/GetMemory", Role::kRead},
    {"Node/PlanMemory", Role::kRead},
    {"Node/GetFigures", Role::kRead},
    {"Node/GetDoctor", Role::kRead},
    {"Node/GetConfig", Role::kRead},
    {"Node/ListNodes", Role::kRead},
    {"Node/ExplainGroup", Role::kRead},
    {"Node/WatchGroup", Role::kRead},
    {"Node/GetTrace", Role::kOperate},      // It makes workers do more.
    {"Node/ExamineNodes", Role::kOperate},  // Logs and stacks are not for everybody.
    {"Node/CreateGroup", Role::kOperate},
    {"Node/DrainGroup", Role::kOperate},
    {"Node/CloseGroup", Role::kOperate},
    {"Node/Replace", Role::kOperate},    // And on the Unix socket only.
    {"Cluster/Challenge", Role::kRead},  // With it a caller shows that it is a node.
    {"Cluster/ReadClock", Role::kRead},  // As harmless as it is.
    {"Cluster/Sync", Role::kNode},
    {"Cluster/AskNodes", Role::kNode},
};

// Who calls, as far as the kernel, TLS or a proof say.
struct Caller {
  bool on_unix_socket = false;
  uint32_t uid = 0;  // On the Unix socket.
  // Of the certificate, which this cluster's authority has signed.
  std::vector<std::string> names = {};
  std::string proven_node = {};  // Without TLS: the node that knows the cluster's secret; "": none.
  std::string no_proof = {};     // Why none.
};

// Of this epd.
struct RoleRules {
  uint32_t own_uid = 0;
  bool tls = false;
  // Names of certificates; `*` stands for any characters.
  std::vector<std::string> operators = {};
  std::vector<std::string> nodes = {};
};

// The Unix socket: epd's own uid and root operate; whoever else has been let in reads. TCP: everybody who is served reads
// (with TLS who has a certificate of the cluster, without it who reaches the address); operators have a listed name in
// their certificate, nodes, too, or, without TLS, the cluster's secret.
//   PERMISSION_DENIED  says what the role takes, who the caller is, and which setting would let it in
//   INTERNAL           the method is not in the table
absl::Status CheckRole(absl::string_view method, const Caller& caller, const RoleRules& rules);

// Whether a caller that may be a node may be this one. A certificate is for the node of its name, or of that name's
// first label ("n1" of "n1.cluster.local"); one of a wildcard ("*.epd.svc") is for all nodes that share it.
//   PERMISSION_DENIED  it may be others
absl::Status CheckNodeName(absl::string_view node, const Caller& caller, const RoleRules& rules);

}  // namespace epd
