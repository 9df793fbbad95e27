// SHA-256, for telling whether two workers hold the same secret without showing it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace epd {

// The 32 bytes of the digest.
//   INTERNAL  the crypto library refuses (for example, out of memory)
absl::StatusOr<std::string> Sha256(absl::string_view bytes);

}  // namespace epd
