// Reading an ABI struct whose caller may be older or newer than this library.
#pragma once

#include <algorithm>
#include <cstring>

#include "client/c/status.h"

namespace epd::client {

// Copies what both sides know of `*given`; the rest is zero, that is its default.
//   INVALID_ARGUMENT  NULL, struct_size was not set, or the caller is newer and has set what this library does not know
template <typename Struct>
Status ReadStruct(const Struct* given, const char* what, Struct* out) {
  if (given == nullptr) return MakeStatus(Code::kInvalidArgument, "%s must not be NULL", what);
  std::memset(static_cast<void*>(out), 0, sizeof *out);
  if (given->struct_size <= sizeof given->struct_size) {
    return MakeStatus(Code::kInvalidArgument,
                      "%s: struct_size is %zu; set it to sizeof the struct (%zu)", what,
                      given->struct_size, sizeof *out);
  }
  std::memcpy(static_cast<void*>(out), given, std::min(given->struct_size, sizeof *out));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof *out; i < given->struct_size; ++i) {
    if (bytes[i] == 0) continue;
    return MakeStatus(Code::kInvalidArgument,
                      "%s: the field at byte %zu is set, which this library, older than its "
                      "caller, does not know; load a "
                      "newer one, or leave the field zero",
                      what, i);
  }
  return {};
}

}  // namespace epd::client
