// Who may read the metrics, and where they may be served.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/node/settings/settings.h"

namespace epd {

struct MetricsAccess {
  std::string token = {};  // Empty: nobody is asked.
  bool tls = false;
  bool local = false;  // Only this machine reaches the address.
};

// What the settings say, with the token that is in its file.
//   FAILED_PRECONDITION  the address is not loopback and there is no token, or no TLS (unless `insecure`); or others may read
//                        the token's file
//   INVALID_ARGUMENT     one of metrics_cert and metrics_key is missing, or the token has less than 16 characters
//   NOT_FOUND            the token's file cannot be read
absl::StatusOr<MetricsAccess> ReadMetricsAccess(const Settings& settings);

enum class Admission { kAllowed, kNoToken, kWrongHost };

// `host` and `authorization` are the request's headers. A web page that somebody looks at could lead its name to this
// machine's loopback, so a request without a token must say that it means this machine.
Admission Admit(const MetricsAccess& access, absl::string_view host,
                absl::string_view authorization);

}  // namespace epd
