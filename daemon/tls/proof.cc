#include "daemon/tls/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace epd {

std::string ProofOf(absl::string_view key, std::initializer_list<absl::string_view> parts) {
  std::string text;
  for (const absl::string_view part : parts) absl::StrAppend(&text, part.size(), ":", part);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
  return {reinterpret_cast<const char*>(digest), size};
}

bool SameProof(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t got = 0; got < count;) {
    const ssize_t more = getrandom(bytes.data() + got, count - got, 0);
    if (more < 0 && errno != EINTR) std::abort();  // No secret would be one.
    if (more > 0) got += static_cast<size_t>(more);
  }
  return bytes;
}

}  // namespace epd
