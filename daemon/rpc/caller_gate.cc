#include "daemon/rpc/caller_gate.h"

#include <grpc/grpc_security_constants.h>

#include <optional>

#include "absl/time/clock.h"

namespace epd {

Caller CallerGate::Identify(const grpc::ServerContextBase& context) const {
  Caller caller;
  if (const std::optional<uid_t> uid = callers_.UidOf(context); uid.has_value()) {
    caller.on_unix_socket = true;
    caller.uid = *uid;
    return caller;
  }
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : context.auth_context()->FindPropertyValues(property))
      caller.names.emplace_back(name.data(), name.size());
  }
  const auto& metadata = context.client_metadata();
  const auto said = metadata.find(kNodeProofKey);
  if (said == metadata.end()) return caller;
  absl::StatusOr<std::string> node = proof_.Check(
      std::string(said->second.data(), said->second.size()), context.peer(), absl::Now());
  if (node.ok()) {
    caller.proven_node = *std::move(node);
  } else {
    caller.no_proof = std::string(node.status().message());
  }
  return caller;
}

absl::Status CallerGate::Admit(absl::string_view method, const grpc::ServerContextBase& context,
                               const Caller& caller) const {
  absl::Status verdict = CheckRole(method, caller, rules_);
  if (!verdict.ok()) {
    log_refused_(absl::Status(verdict.code(),
                              absl::StrCat(callers_.Describe(context), ": ", verdict.message())));
  }
  return verdict;
}

}  // namespace epd
