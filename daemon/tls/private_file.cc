#include "daemon/tls/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace epd {
namespace {

constexpr size_t kMinSecretBytes = 16;

}  // namespace

absl::Status CheckPrivateFile(const std::string& setting, const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) {
    return absl::NotFoundError(
        absl::StrCat(setting, ": cannot read '", path, "': ", std::strerror(errno)));
  }
  const bool owned = facts.st_uid == geteuid() || facts.st_uid == 0;
  const mode_t closed = facts.st_uid == 0 ? 027 : 077;
  if (owned && S_ISREG(facts.st_mode) && (facts.st_mode & closed) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: '%s' is a file of uid %d with mode %04o, expected one of uid %d (or root's) with mode "
      "0600: others could read or change what only epd may know; chown and chmod 600 it",
      setting, path, facts.st_uid, facts.st_mode & 07777, geteuid()));
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& setting, const std::string& path) {
  if (absl::Status bad = CheckPrivateFile(setting, path); !bad.ok()) return bad;
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(setting, ": cannot read '", path, "'"));
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<std::string> ReadClusterSecret(const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> secret = ReadPrivateFile("cluster_secret", path);
  if (!secret.ok()) return secret;
  absl::StripTrailingAsciiWhitespace(&*secret);
  if (secret->size() >= kMinSecretBytes) return secret;
  return absl::InvalidArgumentError(absl::StrCat(
      "cluster_secret: '", path, "' has ", secret->size(), " bytes, expected at least ",
      kMinSecretBytes, "; make one with: openssl rand -hex 32"));
}

}  // namespace epd
