// What the kinds of operations do with rows, and what their steps are called.
#pragma once

#include "proto/epd/v1/segment.h"

namespace epd::shm {

// Rows of tokens go to experts: dispatch, and the backward of combine. The others, but for prepare, gather.
constexpr bool Scatters(Kind kind) {
  return kind == Kind::kDispatch || kind == Kind::kCombineBackward;
}

// "announce", "publish", "pulled": the phases that messages name.
constexpr const char* PhaseName(Step step) {
  switch (step) {
    case Step::kAnnounce:
    case Step::kAnnounceStaged:
    case Step::kStreamAnnounce:
      return "announce";
    case Step::kPublish:
    case Step::kStreamPublish:
      return "publish";
    case Step::kPulled:
    case Step::kStreamPulled:
      return "pulled";
  }
  return "unknown";
}

}  // namespace epd::shm
