#include "client/c/status.h"

#include <cstdarg>
#include <cstdio>
#include <utility>

namespace epd::client {

Status MakeStatus(Code code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string text(length < 0 ? 0 : static_cast<size_t>(length), '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return {code, std::move(text)};
}

Status WithCode(Status status) {
  if (status.ok() || status.message.starts_with("[epd:")) return status;
  status.message = std::string("[epd:") + CodeName(status.code) + "] " + status.message;
  return status;
}

Status AtPlace(Status status, const ErrorPlace& place) {
  if (status.ok() || status.message.starts_with("[epd:")) return status;
  Status prefix = MakeStatus(
      status.code, "[epd:%s] group=%.*s epoch=%llu rank=%u phase=%s: ", CodeName(status.code),
      static_cast<int>(place.group.size()), place.group.data(),
      static_cast<unsigned long long>(place.epoch), place.rank, place.phase);
  status.message.insert(0, prefix.message);
  return status;
}

}  // namespace epd::client
