// Proofs that somebody knows a secret, without saying it.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"

namespace epd {

inline constexpr size_t kProofBytes = 32;

// HMAC-SHA256 of `parts` under `key`. Each part counts with its length, so that no two lists say the same.
std::string ProofOf(absl::string_view key, std::initializer_list<absl::string_view> parts);

// Takes as long whatever they hold: how far two proofs agree is nobody's to measure.
bool SameProof(absl::string_view a, absl::string_view b);

// From the kernel, for keys and nonces.
std::string RandomBytes(size_t count);

}  // namespace epd
