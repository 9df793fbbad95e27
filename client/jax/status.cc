#include "client/jax/status.h"

#include <cstdio>

namespace epd::jax {

Status FromError(int code, const epd_error& error) { return {code, error.message}; }

int Report(const Status& status, epd_error* error) {
  if (!status.ok() && error != nullptr) {
    error->code = status.code;
    std::snprintf(error->message, sizeof error->message, "%s", status.message.c_str());
  }
  return status.code;
}

}  // namespace epd::jax
