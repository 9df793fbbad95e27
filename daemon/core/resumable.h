// Marks causes after which a group comes back by itself: Status.resumable of the protocol, carried by the status
// through everything that passes it on.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace epd {

inline constexpr char kResumable[] = "epd.resumable";

// A node's epd stops in order: what fails with `cause` has happened on no rank, and members join again.
inline absl::Status Resumable(absl::Status cause) {
  cause.SetPayload(kResumable, absl::Cord());
  return cause;
}

inline bool IsResumable(const absl::Status& cause) {
  return cause.GetPayload(kResumable).has_value();
}

}  // namespace epd
