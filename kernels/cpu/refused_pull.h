// The pull of arguments that are wrong; for the CPU kernels' own sources.
#pragma once

#include <cstdint>

#include "kernels/kernel_error.h"
#include "kernels/pull_in_parts.h"

namespace epd {

class RefusedPull final : public PullInParts {
 public:
  explicit RefusedPull(const KernelError& error) { error_ = error; }

  bool Some(std::uint64_t) override { return false; }
};

}  // namespace epd
