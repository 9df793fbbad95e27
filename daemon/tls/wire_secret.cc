#include "daemon/tls/wire_secret.h"

#include "absl/strings/str_cat.h"
#include "daemon/tls/proof.h"

namespace epd {

std::string WorkerSecret(absl::string_view cluster_secret, absl::string_view wire_secret) {
  return ProofOf(cluster_secret, {"worker", wire_secret});
}

std::string SecretOfPair(absl::string_view worker_secret, Incarnation from, Incarnation to) {
  return ProofOf(worker_secret, {"pair", absl::StrCat(from.value), absl::StrCat(to.value)});
}

}  // namespace epd
