#include "daemon/metrics/access.h"

#include <openssl/crypto.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/tls/address.h"
#include "daemon/tls/private_file.h"

namespace epd {
namespace {

constexpr size_t kShortestToken = 16;

// A name that begins with "unix" is no Unix socket here.
bool IsThisMachine(const std::string& host) {
  return !absl::StartsWith(host, "unix") && IsLoopback(host);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  absl::StatusOr<std::string> token = ReadPrivateFile("metrics_token", path);
  if (!token.ok()) return token;
  absl::StripAsciiWhitespace(&*token);
  if (token->size() >= kShortestToken) return token;
  return absl::InvalidArgumentError(absl::StrCat("metrics_token: '", path, "' has ", token->size(),
                                                 " characters, expected at least ", kShortestToken,
                                                 "; make one with: openssl rand -hex 32"));
}

}  // namespace

absl::StatusOr<MetricsAccess> ReadMetricsAccess(const Settings& settings) {
  const std::string host = HostOf(settings.metrics_listen);
  MetricsAccess access{
      .token = "", .tls = !settings.metrics_cert.empty(), .local = IsThisMachine(host)};
  if (settings.metrics_cert.empty() != settings.metrics_key.empty())
    return absl::InvalidArgumentError("metrics_cert and metrics_key: set both, or none");
  if (!settings.metrics_token.empty()) {
    absl::StatusOr<std::string> token = ReadToken(settings.metrics_token);
    if (!token.ok()) return token.status();
    access.token = *std::move(token);
  }
  const auto refuse = [&](const char* why) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot serve metrics on '", settings.metrics_listen, "': ", why));
  };
  if (!access.local && access.token.empty())
    return refuse("without metrics_token only loopback addresses are taken; set it");
  if (!access.local && !access.tls && settings.insecure != "yes")
    return refuse(
        "a token is not sent in the clear; set metrics_cert and metrics_key, or, where the whole "
        "network is trusted, insecure=yes");
  return access;
}

Admission Admit(const MetricsAccess& access, absl::string_view host,
                absl::string_view authorization) {
  if (access.token.empty())
    return IsThisMachine(HostOf(std::string(host))) ? Admission::kAllowed : Admission::kWrongHost;
  const bool fits =
      absl::ConsumePrefix(&authorization, "Bearer ") &&
      authorization.size() == access.token.size() &&
      CRYPTO_memcmp(authorization.data(), access.token.data(), access.token.size()) == 0;
  return fits ? Admission::kAllowed : Admission::kNoToken;
}

}  // namespace epd
