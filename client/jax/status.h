// What went wrong, as the C interface has it: a code and the text that explains it.
#pragma once

#include <string>

#include "client/c/epd_client.h"

namespace epd::jax {

// Those of absl::StatusCode that are found here; others come from the C library.
enum : int {
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kInternal = 13,
};

// EPD_OK is good.
struct Status {
  int code = EPD_OK;
  std::string message;
  bool ok() const { return code == EPD_OK; }
};

// Takes over what the C library reported.
Status FromError(int code, const epd_error& error);

// Fills `error`, which may be null, unless the status is good. Returns the code.
int Report(const Status& status, epd_error* error);

}  // namespace epd::jax
