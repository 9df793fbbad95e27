// What went wrong, as a code and a text: the library's absl::Status, without absl.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace epd::client {

// Numerically absl::StatusCode, grpc::StatusCode and the codes of epd_client.h.
enum class Code : int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" and so on; an unknown number gives "UNKNOWN".
const char* CodeName(Code code);

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }
};

// Formats like printf.
Status MakeStatus(Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// The code of a number that came from outside: what is no error code becomes kUnknown.
Code CodeFromNumber(int64_t number);

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
