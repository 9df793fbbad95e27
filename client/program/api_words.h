// Errors in the words of the users of epd.jax and epd.torch. The C library and the daemon speak of the fields of
// epd_group_spec, of the tokens of one rank, and of joining, which here a call does by itself.
//
// The one place where texts are changed, on their way to a framework or to the Python package.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "client/c/status.h"

namespace epd::program {

// What a user does about an error.
struct Remedy {
  client::Code code;
  std::string_view when;   // In the text; empty: always.
  std::string_view retry;  // EpError.retry: "call again", "connect again" or "no".
  std::string_view text;   // Comes first in the error; empty: its own text says it.
};

// What a framework's compiled call knows beyond the text.
struct CallWords {
  std::string_view tokens_argument;  // That says how many tokens there are.
  std::int64_t shards = 1;           // Ranks whose tokens the caller's arrays hold.
  std::string_view program;          // Which this rank runs.
};

// The remedy for an error with this text; "no" and an empty text where there is none.
const Remedy& FindRemedy(client::Code code, std::string_view text);

// `text` with public names, as what was passed to the call (null: to none), with the remedy before it and lists of paths behind
// it, and with group, tenant and epoch said once. Text that went through here stays as it is.
std::string InApiWords(client::Code code, std::string text, const CallWords* call);

}  // namespace epd::program
