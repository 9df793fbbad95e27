#include "daemon/rpc/cluster/cluster_link.h"

#include <utility>

#include "absl/time/clock.h"
#include "daemon/rpc/answer.h"
#include "daemon/rpc/cluster/link_policy.h"
#include "daemon/rpc/cluster/link_proof.h"

namespace epd {
namespace {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  // The back-off is ours; gRPC's own would add to it.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // How long a connection may take to open, TLS and all.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  const auto credentials = MakeChannelCredentials(tls, LogRefusedPeer());
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

struct ChallengeCall {
  std::shared_ptr<v1::Cluster::Stub> stub;
  grpc::ClientContext context;
  v1::ChallengeRequest request;
  v1::ChallengeResponse response;
};

}  // namespace

ClusterLink::ClusterLink(const std::string& address, const Node& node)
    : node_(node.id().value),
      secret_(node.identity().cluster_secret),
      stub_(v1::Cluster::NewStub(MakeChannel(address, node.certificates().served()))) {}

void ClusterLink::Prove(absl::Duration patience, Proven then) {
  if (secret_.empty()) return then(std::string());
  const auto call = std::make_shared<ChallengeCall>();
  call->stub = stub_;
  call->request = AskForChallenge(node_);
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  stub_->async()->Challenge(
      &call->context, &call->request, &call->response,
      [call, secret = secret_, then = std::move(then)](const grpc::Status& status) {
        if (status.ok()) return then(ProveNode(secret, call->request, call->response));
        if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
          return then(absl::UnimplementedError(
              "the epd there is older and cannot show that it knows the cluster's secret; upgrade "
              "it, or use TLS"));
        }
        then(FromGrpc(status));
      });
}

}  // namespace epd
