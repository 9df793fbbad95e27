// Where the regions of each turn's operation are, as one member of a communicator tells the others of its node: memory
// that it writes and they read, so that an operation costs no message.
//
//   taken                     how many turns this member has read of all others
//   kPlaces x { place + 1,    0: nothing yet
//               num_ranks x { offset, num_tokens, recv_capacity } }
//
// Turn p stands in entry p % kPlaces. A member writes it once all others have taken turn p - kPlaces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/unique_fd.h"

namespace epd::cuda {

// Of one rank of the member that tells it.
struct RankRegion {
  uint64_t offset = 0;  // Of the region, from the start of the rank's arena.
  uint64_t num_tokens = 0;
  uint64_t recv_capacity = 0;

  friend bool operator==(const RankRegion&, const RankRegion&) = default;
};

// One writer, whose places grow; readers in other processes. Not thread-safe.
class RegionBoard {
 public:
  static constexpr uint64_t kPlaces = 64;

  // This member's; an operation has at most `max_ranks` ranks here.
  //   RESOURCE_EXHAUSTED  memory or descriptors
  static absl::StatusOr<RegionBoard> Create(size_t max_ranks);
  // Another member's, to be read. The descriptor stays the caller's.
  //   DATA_LOSS           it is of another size
  //   RESOURCE_EXHAUSTED  address space
  static absl::StatusOr<RegionBoard> Open(int fd, size_t max_ranks);
  RegionBoard(RegionBoard&& other) noexcept;
  RegionBoard& operator=(RegionBoard&&) = delete;
  ~RegionBoard();

  int fd() const { return fd_.get(); }  // Of one that was created.

  void Write(uint64_t place, absl::Span<const RankRegion> ranks);
  // False: not yet.
  bool Read(uint64_t place, absl::Span<RankRegion> ranks) const;
  void SetTaken(uint64_t num_places);
  uint64_t taken() const;

 private:
  RegionBoard(UniqueFd fd, void* data, size_t max_ranks)
      : fd_(std::move(fd)), words_(static_cast<uint64_t*>(data)), max_ranks_(max_ranks) {}
  static size_t Words(size_t max_ranks);
  uint64_t* Entry(uint64_t place) const;

  UniqueFd fd_;
  uint64_t* words_ = nullptr;
  size_t max_ranks_ = 0;
};

}  // namespace epd::cuda
