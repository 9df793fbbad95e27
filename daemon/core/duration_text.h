// How long something took, or is ago, for texts.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace epd {

// "1.234s": to the millisecond, downwards.
inline std::string InMilliseconds(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(1)));
}

}  // namespace epd
