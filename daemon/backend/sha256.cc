#include "daemon/backend/sha256.h"

#include <openssl/evp.h>

namespace epd {

absl::StatusOr<std::string> Sha256(absl::string_view bytes) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()),
                 &length, EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("the crypto library cannot compute SHA-256");
  }
  digest.resize(length);
  return digest;
}

}  // namespace epd
