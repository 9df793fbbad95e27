#include "daemon/rpc/cluster/link_proof.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/tls/proof.h"

namespace epd {
namespace {

constexpr absl::Duration kYoung = absl::Seconds(30);

std::string ProofOfAnswerer(const std::string& secret, const v1::ChallengeRequest& request,
                            const std::string& challenge) {
  return ProofOf(secret, {"answers", request.node(), request.nonce(), challenge});
}

std::string ProofOfCaller(const std::string& secret, const std::string& node,
                          const std::string& nonce, const std::string& challenge) {
  return ProofOf(secret, {"calls", node, nonce, challenge});
}

std::string Written(absl::Time time) {
  const int64_t seconds = absl::ToUnixSeconds(time);
  std::string bytes(sizeof seconds, '\0');
  std::memcpy(bytes.data(), &seconds, sizeof seconds);
  return bytes;
}

}  // namespace

LinkProof::LinkProof(std::string secret)
    : secret_(std::move(secret)), key_(RandomBytes(kProofBytes)) {}

std::string LinkProof::MakeChallenge(const std::string& time, const std::string& peer,
                                     const std::string& node, const std::string& nonce) const {
  return absl::StrCat(time, ProofOf(key_, {time, peer, node, nonce}));
}

absl::StatusOr<v1::ChallengeResponse> LinkProof::Answer(const v1::ChallengeRequest& request,
                                                        const std::string& peer,
                                                        absl::Time now) const {
  if (secret_.empty()) {
    return absl::FailedPreconditionError(
        "this epd has no cluster_secret, with which nodes prove who they are where there is no "
        "TLS; set it, the same on all nodes");
  }
  if (request.nonce().size() != kProofBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("nonce: got ", request.nonce().size(), " bytes, expected ", kProofBytes));
  v1::ChallengeResponse response;
  response.set_challenge(MakeChallenge(Written(now), peer, request.node(), request.nonce()));
  response.set_proof(ProofOfAnswerer(secret_, request, response.challenge()));
  return response;
}

absl::StatusOr<std::string> LinkProof::Check(const std::string& proof, const std::string& peer,
                                             absl::Time now) const {
  v1::NodeProof said;
  int64_t seconds = 0;
  if (!said.ParseFromString(proof) || said.challenge().size() < sizeof seconds || secret_.empty())
    return absl::UnauthenticatedError("what it says is no proof");
  std::memcpy(&seconds, said.challenge().data(), sizeof seconds);
  const absl::Time made = absl::FromUnixSeconds(seconds);
  const std::string own = MakeChallenge(Written(made), peer, said.node(), said.nonce());
  if (!SameProof(own, said.challenge()) || now - made > kYoung || made - now > kYoung) {
    return absl::UnauthenticatedError(
        "its proof is old, or of another connection; it tries again by itself");
  }
  if (SameProof(said.proof(), ProofOfCaller(secret_, said.node(), said.nonce(), said.challenge())))
    return said.node();
  return absl::UnauthenticatedError(absl::StrCat(
      "node '", said.node(), "' has another secret; give all nodes one cluster_secret"));
}

v1::ChallengeRequest AskForChallenge(const std::string& node) {
  v1::ChallengeRequest request;
  request.set_node(node);
  request.set_nonce(RandomBytes(kProofBytes));
  return request;
}

absl::StatusOr<std::string> ProveNode(const std::string& secret,
                                      const v1::ChallengeRequest& request,
                                      const v1::ChallengeResponse& response) {
  if (!SameProof(response.proof(), ProofOfAnswerer(secret, request, response.challenge()))) {
    return absl::UnauthenticatedError(
        "whoever answers there does not know this cluster's secret; is cluster_secret the same on "
        "all nodes?");
  }
  v1::NodeProof proof;
  proof.set_node(request.node());
  proof.set_nonce(request.nonce());
  proof.set_challenge(response.challenge());
  proof.set_proof(ProofOfCaller(secret, request.node(), request.nonce(), response.challenge()));
  return proof.SerializeAsString();
}

}  // namespace epd
