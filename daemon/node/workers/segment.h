// The shared-memory segments that epd owns: slots of a session, outcome records of the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "proto/epd/v1/slots_view.h"

namespace epd {

// A memfd of fixed size, mapped read-write. All pages exist from the start: a client or worker that
// writes never meets SIGBUS for want of memory.
class SharedSegment {
 public:
  // `name` is for /proc/*/maps.
  //   RESOURCE_EXHAUSTED  memory, quota, descriptors or address space
  static absl::StatusOr<SharedSegment> Create(const std::string& name, size_t bytes);

  // Maps one that an earlier program of this process has made.
  //   DATA_LOSS           it has another size
  //   RESOURCE_EXHAUSTED  address space
  static absl::StatusOr<SharedSegment> Adopt(std::shared_ptr<UniqueFd> fd, size_t bytes);

  SharedSegment() = default;
  SharedSegment(SharedSegment&&) noexcept;
  SharedSegment& operator=(SharedSegment&&) noexcept;
  ~SharedSegment();

  // To be sent; shared, because a send may be queued longer than the segment is mapped.
  const std::shared_ptr<UniqueFd>& fd() const { return fd_; }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<UniqueFd> fd_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A slots segment with its header filled in. Errors as SharedSegment::Create.
absl::StatusOr<SharedSegment> CreateSlots(uint64_t session_id, uint64_t incarnation);
inline shm::SlotsView Slots(const SharedSegment& s) {
  return shm::SlotsView::OfThisVersion(s.data());
}

// The records segment with its header filled in.
absl::StatusOr<SharedSegment> CreateRecords();
inline shm::RecordsSegment& Records(const SharedSegment& s) {
  return *static_cast<shm::RecordsSegment*>(s.data());
}

}  // namespace epd
