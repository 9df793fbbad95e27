// Statuses out of the functions of a C ABI, out of which no exception leaves.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "client/c/epd_client.h"
#include "client/c/status.h"

namespace epd::client {

// Needs no memory.
inline int ReportText(Code code, std::string_view text, epd_error* error) noexcept {
  if (error != nullptr && error->struct_size > offsetof(epd_error, message)) {
    error->code = static_cast<int32_t>(code);
    const size_t room =
        std::min(error->struct_size, sizeof(epd_error)) - offsetof(epd_error, message);
    const size_t length = std::min(text.size(), room - 1);
    std::memcpy(error->message, text.data(), length);
    error->message[length] = '\0';
  }
  return static_cast<int>(code);
}

inline int Report(Status status, epd_error* error) {
  status = WithCode(std::move(status));
  return ReportText(status.code, status.message, error);
}

inline constexpr std::string_view kOutOfMemory =
    "[epd:RESOURCE_EXHAUSTED] out of memory in this process; see ulimit -v and the limit of its "
    "control group";

// What is being caught, as an error. Call it in a handler of everything: a thread's cancellation goes on.
inline int ReportCaught(epd_error* error) {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    return ReportText(Code::kResourceExhausted, kOutOfMemory, error);
  } catch (const std::system_error& e) {
    const int number = e.code().value();
    const bool limit = number == EAGAIN || number == ENOMEM || number == EMFILE || number == ENFILE;
    return ReportText(limit ? Code::kResourceExhausted : Code::kInternal, e.what(), error);
  } catch (const std::exception& e) {
    return ReportText(Code::kInternal, e.what(), error);
  } catch (...) {
    return ReportText(Code::kInternal, "[epd:INTERNAL] an exception of an unknown type", error);
  }
}

// The one guard of the functions of a C ABI: runs `body()`, which returns a Status, and turns what it throws into an error. But for
// a thread's cancellation (pthread_cancel) nothing leaves it.
template <typename Body>
int Guarded(epd_error* error, Body&& body) {
  try {
    return Report(body(), error);
  } catch (...) {
    return ReportCaught(error);
  }
}

// The same of a function that has no error to report: what `body()` returns, or `failed`.
template <typename Result, typename Body>
Result GuardedOr(Result failed, Body&& body) {
  try {
    return body();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return failed;
  }
}

// ... and of one that returns nothing.
template <typename Body>
void GuardedCall(Body&& body) {
  try {
    body();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is nobody to tell.
  }
}

}  // namespace epd::client
