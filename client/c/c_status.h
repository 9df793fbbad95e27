// Statuses out of the functions of a C ABI, out of which no exception leaves.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "client/c/epd_client.h"
#include "client/c/status.h"

namespace epd::client {

inline int Report(Status status, epd_error* error) {
  status = WithCode(std::move(status));
  if (error != nullptr && error->struct_size > offsetof(epd_error, message)) {
    error->code = static_cast<int32_t>(status.code);
    const size_t room =
        std::min(error->struct_size, sizeof(epd_error)) - offsetof(epd_error, message);
    const size_t length = std::min(status.message.size(), room - 1);
    std::memcpy(error->message, status.message.data(), length);
    error->message[length] = '\0';
  }
  return static_cast<int>(status.code);
}

// Runs `body()`, which returns a Status, and turns what it throws into one.
template <typename Body>
int Guarded(epd_error* error, Body body) {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = {Code::kResourceExhausted, "out of memory"};
  } catch (const std::exception& e) {
    status = {Code::kInternal, e.what()};
  }
  return Report(std::move(status), error);
}

}  // namespace epd::client
