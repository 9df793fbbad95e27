#include "daemon/worker/shell/status_codec.h"

#include <string>

#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/text.h"

namespace epd {

absl::Status StatusFromProto(const v1::Status& status) {
  const bool known =
      status.code() >= 0 && status.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(
      known ? static_cast<absl::StatusCode>(status.code()) : absl::StatusCode::kUnknown,
      text::Clean(status.message(), limits::kErrorBytes));
}

v1::Status StatusToProto(const absl::Status& status) {
  v1::Status message;
  message.set_code(static_cast<int32_t>(status.code()));
  message.set_message(std::string(status.message()));
  return message;
}

}  // namespace epd
