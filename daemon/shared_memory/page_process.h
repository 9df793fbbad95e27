// A process that makes and gives back pages for another one, which does not wait for it.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/shared_memory/file_pages.h"

namespace epd {

// epd-worker's mode; descriptor 3 is the socket (SOCK_SEQPACKET) on which orders come.
inline constexpr char kPageProcessFlag[] = "--pages";

// An order names so many ranges at most, each with its descriptor.
inline constexpr size_t kMaxPagesOfOrder = 64;

// One order at a time: what it does is answered before the next.
//   INVALID_ARGUMENT    no ranges, or more than kMaxPagesOfOrder
//   RESOURCE_EXHAUSTED  no memory or descriptors for the message
//   UNAVAILABLE         the process has ended
absl::Status SendPageOrder(int socket, PageAction action, absl::Span<const FilePages> pages);
// Its answer, where there is one: 0, or the errno of the first range that failed, after which none was tried.
//   UNAVAILABLE  the process has ended
//   NOT_FOUND    no answer yet
absl::StatusOr<int> ReceivePageAnswer(int socket);

// Takes orders until the other end is closed, and does all that have been sent before. Returns the exit status.
int PageProcessMain(int socket);

}  // namespace epd
