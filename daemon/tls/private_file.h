// Files that hold what nobody else may read: keys, passwords, the cluster's secret.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace epd {

// Whether `path`, the value of `setting`, belongs to this process's user or to root, and others can neither read nor
// write it: mode 0600 or 0400. A group may read a file of root's (0640, 0440), as Kubernetes mounts secrets.
//   NOT_FOUND            it cannot be looked at
//   FAILED_PRECONDITION  names file, owner, mode, and what to do
absl::Status CheckPrivateFile(const std::string& setting, const std::string& path);

// Its content, after that. Errors as CheckPrivateFile.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& setting, const std::string& path);

// The cluster's secret in `path`, without white space at its end; "" for "". Errors as CheckPrivateFile, and
//   INVALID_ARGUMENT  it has less than 16 bytes
absl::StatusOr<std::string> ReadClusterSecret(const std::string& path);

}  // namespace epd
