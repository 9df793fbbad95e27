#include "daemon/worker/peer_streams/stream_proof.h"

#include "absl/strings/str_cat.h"
#include "daemon/tls/proof.h"

namespace epd {

std::string MakeChallenge(absl::string_view pair_secret, absl::string_view hello) {
  const std::string nonce = RandomBytes(kProofBytes);
  return absl::StrCat(nonce, ProofOf(pair_secret, {"answers", hello, nonce}));
}

bool IsChallenge(absl::string_view pair_secret, absl::string_view hello,
                 absl::string_view challenge) {
  return challenge.size() == 2 * kProofBytes &&
         SameProof(challenge.substr(kProofBytes),
                   ProofOf(pair_secret, {"answers", hello, challenge.substr(0, kProofBytes)}));
}

std::string ProofOfStream(absl::string_view pair_secret, absl::string_view hello,
                          absl::string_view challenge) {
  return ProofOf(pair_secret, {"calls", hello, challenge});
}

}  // namespace epd
