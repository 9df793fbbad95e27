#include "daemon/worker/shell/status_codec.h"

#include <string>

namespace epd {

absl::Status StatusFromProto(const v1::Status& status) {
  const bool known =
      status.code() >= 0 && status.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(
      known ? static_cast<absl::StatusCode>(status.code()) : absl::StatusCode::kUnknown,
      status.message());
}

v1::Status StatusToProto(const absl::Status& status) {
  v1::Status message;
  message.set_code(static_cast<int32_t>(status.code()));
  message.set_message(std::string(status.message()));
  return message;
}

}  // namespace epd
