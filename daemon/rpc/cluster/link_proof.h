// How the two ends of a link without TLS show that they belong to one cluster: both know its secret.
//
//   caller    -> Challenge{node, nonce}
//   answerer  -> challenge = time and HMAC(key of this run; time, connection, node, nonce),
//                HMAC(secret; "answers", node, nonce, challenge)
//   caller    -> with each call: node, nonce, challenge, HMAC(secret; "calls", node, nonce, challenge)
//
// The answerer keeps nothing: it makes its challenge again to see that it is its own, young, and of this very connection,
// so what somebody overhears helps on no other one. What follows is neither encrypted nor bound to the proof: whoever can
// change packets on their way can change what nodes say. Against that there is TLS.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/epd/v1/cluster.pb.h"

namespace epd {

// The metadata of a NodeProof.
inline constexpr char kNodeProofKey[] = "epd-node-bin";

// The side that answers. Thread-safe.
class LinkProof {
 public:
  // An empty secret proves nothing and believes nobody.
  explicit LinkProof(std::string secret);

  // `peer` is gRPC's name of the connection's other end.
  //   FAILED_PRECONDITION  there is no secret here
  //   INVALID_ARGUMENT     the nonce has not 32 bytes
  absl::StatusOr<v1::ChallengeResponse> Answer(const v1::ChallengeRequest& request,
                                               const std::string& peer, absl::Time now) const;

  // The node that a serialised NodeProof is of.
  //   UNAUTHENTICATED  it is old, of another connection, or made with another secret
  absl::StatusOr<std::string> Check(const std::string& proof, const std::string& peer,
                                    absl::Time now) const;

 private:
  std::string MakeChallenge(const std::string& time, const std::string& peer,
                            const std::string& node, const std::string& nonce) const;

  const std::string secret_;
  const std::string key_;
};

// The side that calls: asks with this,
v1::ChallengeRequest AskForChallenge(const std::string& node);
// ... and makes of the answer what goes with its calls, serialised.
//   UNAUTHENTICATED  whoever answers does not know the secret
absl::StatusOr<std::string> ProveNode(const std::string& secret,
                                      const v1::ChallengeRequest& request,
                                      const v1::ChallengeResponse& response);

}  // namespace epd
