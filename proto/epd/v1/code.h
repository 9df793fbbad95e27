// The codes of epd's errors, for every program and library of it: numerically absl::StatusCode, grpc::StatusCode and the
// codes of client/c/epd_client.h. Which code asks for what is in deploy/runbook.md.
#pragma once

#include <cstdint>

namespace epd {

enum class Code : std::int32_t {
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

inline constexpr std::int32_t kNumCodes = 17;

// "INVALID_ARGUMENT" and so on; an unknown number gives "UNKNOWN".
constexpr const char* CodeName(Code code) {
  constexpr const char* kNames[kNumCodes] = {"OK",
                                             "CANCELLED",
                                             "UNKNOWN",
                                             "INVALID_ARGUMENT",
                                             "DEADLINE_EXCEEDED",
                                             "NOT_FOUND",
                                             "ALREADY_EXISTS",
                                             "PERMISSION_DENIED",
                                             "RESOURCE_EXHAUSTED",
                                             "FAILED_PRECONDITION",
                                             "ABORTED",
                                             "OUT_OF_RANGE",
                                             "UNIMPLEMENTED",
                                             "INTERNAL",
                                             "UNAVAILABLE",
                                             "DATA_LOSS",
                                             "UNAUTHENTICATED"};
  const auto number = static_cast<std::int32_t>(code);
  return number >= 0 && number < kNumCodes ? kNames[number] : "UNKNOWN";
}

// The code of a number that came from outside: what is no code becomes kUnknown.
constexpr Code CodeFromNumber(std::int64_t number) {
  return number >= 0 && number < kNumCodes ? static_cast<Code>(number) : Code::kUnknown;
}

}  // namespace epd
