#include "client/c/digest.h"

#ifndef XXH_INLINE_ALL  // The build rule of xxhash may have set it.
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include <algorithm>
#include <iterator>

namespace epd::client {

Digest DigestOf(std::string_view text) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, XXH3_128bits(text.data(), text.size()));
  Digest digest;
  std::copy(std::begin(bytes.digest), std::end(bytes.digest), digest.begin());
  return digest;
}

}  // namespace epd::client
