// What this epctl is.
#pragma once

namespace epd::cli {

extern const char kVersion[];  // Of bazel/release.bzl.

}  // namespace epd::cli
