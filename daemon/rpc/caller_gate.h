// Who calls, and whether this call is for him (roles.h).
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/rpc/cluster/link_policy.h"
#include "daemon/rpc/cluster/link_proof.h"
#include "daemon/rpc/roles.h"
#include "daemon/rpc/unix_callers.h"

namespace epd {

// Any thread.
class CallerGate {
 public:
  // `callers` outlives this. `secret`: the cluster's; "": none.
  CallerGate(const UnixCallers& callers, RoleRules rules, const std::string& secret)
      : callers_(callers), rules_(std::move(rules)), proof_(secret) {}

  Caller Identify(const grpc::ServerContextBase& context) const;

  // As CheckRole; who is refused is logged.
  absl::Status Admit(absl::string_view method, const grpc::ServerContextBase& context) const {
    return Admit(method, context, Identify(context));
  }
  absl::Status Admit(absl::string_view method, const grpc::ServerContextBase& context,
                     const Caller& caller) const;
  // As CheckNodeName.
  absl::Status AdmitNode(absl::string_view node, const Caller& caller) const {
    return CheckNodeName(node, caller, rules_);
  }

  const LinkProof& proof() const { return proof_; }
  const UnixCallers& callers() const { return callers_; }

 private:
  const UnixCallers& callers_;
  const RoleRules rules_;
  const LinkProof proof_;
  const OnRefusedPeer log_refused_ = LogRefusedPeer();
};

// The call's name in the table of roles: "Node/GetStatus" of v1::GetStatusRequest.
template <typename Request>
std::string MethodOf(absl::string_view service) {
  const std::string& name = Request::descriptor()->name();
  return absl::StrCat(service, "/",
                      name.substr(0, name.size() - absl::string_view("Request").size()));
}

// A call that is refused: whatever kind of stream it is, it ends with `why` at once.
template <typename Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(const grpc::Status& why) { this->Finish(why); }
  void OnDone() override { delete this; }
};

}  // namespace epd
