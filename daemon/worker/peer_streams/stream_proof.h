// How two workers show each other, before the first row, that a formation has brought them together.
//
//   caller    -> metadata of the call: WireHello with a nonce
//   answerer  -> initial metadata: a nonce, HMAC(secret; "answers", hello, nonce)
//   caller    -> first buffer: WireHello with HMAC(secret; "calls", hello, nonce)
//
// The secret is of one pair, in one direction: the caller's epd made it of what the answerer's epd gave away with the
// formation, and the answerer makes it anew of its own. So a worker can be nobody but itself, whoever has read its
// incarnation somewhere, and nobody can answer in a worker's place. Without TLS the rows that follow are not encrypted.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace epd {

// Of the caller's metadata, and of the answerer's.
inline constexpr char kHelloKey[] = "epd-hello-bin";
inline constexpr char kChallengeKey[] = "epd-challenge-bin";

// What answers `hello`, a serialised WireHello; fresh each time.
std::string MakeChallenge(absl::string_view pair_secret, absl::string_view hello);
// Whether that was the right answerer.
bool IsChallenge(absl::string_view pair_secret, absl::string_view hello,
                 absl::string_view challenge);
// What the caller says then.
std::string ProofOfStream(absl::string_view pair_secret, absl::string_view hello,
                          absl::string_view challenge);

}  // namespace epd
