// Errors in the words of epd.jax's users. The C library and the daemon speak of the fields of epd_group_spec, of the tokens
// of one rank, and of joining, which here a call does by itself.
//
// The one place where texts are changed, on their way to XLA or to the Python package.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "client/c/status.h"
#include "client/jax/call_site.h"

namespace epd::jax {

// What a user does about an error.
struct Remedy {
  client::Code code;
  std::string_view when;   // In the text; empty: always.
  std::string_view retry;  // EpError.retry: "call again", "connect again" or "no".
  std::string_view text;   // Comes first in the error; empty: its own text says it.
};

// The remedy for an error with this text; "no" and an empty text where there is none.
const Remedy& FindRemedy(client::Code code, std::string_view text);

// `text` with public names, as what was passed to the call (null: to none), with the remedy before it and lists of paths behind
// it, and with group, tenant and epoch said once. Text that went through here stays as it is.
std::string InApiWords(client::Code code, std::string text, const CallConfig* call);

}  // namespace epd::jax
