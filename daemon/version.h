// The version of epd's binaries.
#pragma once

namespace epd {

extern const char kVersion[];  // Of bazel/release.bzl.

}  // namespace epd
