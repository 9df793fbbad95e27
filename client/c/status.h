// What went wrong, as a code and a text: the library's absl::Status, without absl.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/epd/v1/code.h"

namespace epd::client {

using epd::Code;
using epd::CodeFromNumber;
using epd::CodeName;

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;
  bool resumable = false;  // As in attach.proto.

  bool ok() const { return code == Code::kOk; }
};

// Formats like printf.
Status MakeStatus(Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Where an operation stood, for the prefix of its error.
struct ErrorPlace {
  std::string_view group;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  const char* phase = "";
};

// Puts "[epd:CODE] group=... epoch=... rank=... phase=...: " before a text that has no such prefix
// yet.
Status AtPlace(Status status, const ErrorPlace& place);

// Puts "[epd:CODE] " before a text that has no such prefix yet.
Status WithCode(Status status);

}  // namespace epd::client
