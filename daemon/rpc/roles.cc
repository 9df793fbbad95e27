#include "daemon/rpc/roles.h"

#include <fnmatch.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace epd {
namespace {

bool IsListed(const std::string& name, const std::vector<std::string>& list) {
  return absl::c_any_of(list, [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
  });
}

bool HasListed(const Caller& caller, const std::vector<std::string>& list) {
  return absl::c_any_of(caller.names,
                        [&](const std::string& name) { return IsListed(name, list); });
}

absl::Status Denied(absl::string_view method, absl::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat(method, ": ", why));
}

// With TLS: a name of `setting` is wanted.
absl::Status NeedsName(absl::string_view method, const Caller& caller, const char* setting) {
  return Denied(method, absl::StrCat("of the names of the caller's certificate (",
                                     absl::StrJoin(caller.names, ", "),
                                     ") none is in the setting `", setting, "`"));
}

absl::Status CheckOperator(absl::string_view method, const Caller& caller, const RoleRules& rules) {
  if (caller.on_unix_socket) {
    if (caller.uid == rules.own_uid || caller.uid == 0) return absl::OkStatus();
    return Denied(method, absl::StrCat("uid ", caller.uid, " may only look; call as uid ",
                                       rules.own_uid, ", which runs epd, or as root"));
  }
  if (!rules.tls) {
    return Denied(method,
                  "over TCP it takes TLS (tls_ca, tls_cert, tls_key) and a certificate with a name "
                  "of `operators`; call on the node's Unix socket instead");
  }
  return HasListed(caller, rules.operators) ? absl::OkStatus()
                                            : NeedsName(method, caller, "operators");
}

absl::Status CheckNode(absl::string_view method, const Caller& caller, const RoleRules& rules) {
  if (caller.on_unix_socket) return Denied(method, "it is for other nodes, which call over TCP");
  if (rules.tls) {
    return HasListed(caller, rules.nodes) ? absl::OkStatus() : NeedsName(method, caller, "nodes");
  }
  if (!caller.proven_node.empty()) return absl::OkStatus();
  return Denied(
      method,
      absl::StrCat("without TLS a node proves that it knows the cluster's secret: ",
                   caller.no_proof.empty() ? "this one does not; set cluster_secret on all nodes"
                                           : caller.no_proof));
}

}  // namespace

absl::Status CheckRole(absl::string_view method, const Caller& caller, const RoleRules& rules) {
  const auto* row = absl::c_find_if(
      kMethodRoles, [&](const MethodRole& known) { return known.method == method; });
  if (row == std::end(kMethodRoles))
    return absl::InternalError(absl::StrCat(method, " has no role"));
  switch (row->role) {
    case Role::kRead:
      return absl::OkStatus();
    case Role::kOperate:
      return CheckOperator(method, caller, rules);
    case Role::kNode:
      return CheckNode(method, caller, rules);
  }
  return absl::InternalError("no such role");
}

absl::Status CheckNodeName(absl::string_view node, const Caller& caller, const RoleRules& rules) {
  if (!rules.tls) {
    if (node == caller.proven_node) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        "node '", caller.proven_node, "' has proved who it is, and says that it is '", node, "'"));
  }
  const bool own = absl::c_any_of(caller.names, [&](const std::string& name) {
    if (!IsListed(name, rules.nodes)) return false;
    return name == node || absl::StartsWith(name, "*") ||
           absl::StartsWith(name, absl::StrCat(node, "."));
  });
  if (own) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("says that it is node '", node, "', and its certificate is for ",
                   absl::StrJoin(caller.names, ", "),
                   "; give it one whose name, or the first label of it, is the node's (--node)"));
}

}  // namespace epd
