// The shared-memory segments that epd owns: slots of a session, outcome records of the node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/unique_fd.h"
#include "daemon/shared_memory/page_guard.h"
#include "proto/epd/v1/records_view.h"
#include "proto/epd/v1/slots_view.h"

namespace epd {

// A memfd of fixed size, mapped read-write and guarded (daemon/shared_memory/page_guard.h): a client can take away pages of the one that
// it has. Who answers for others makes pages first (daemon/shared_memory/pages.h), and finds there what was written.
class SharedSegment {
 public:
  struct Part {
    size_t offset;
    size_t bytes;
  };

  // `name` is for /proc/*/maps. The pages of `made` exist from the start; of others each comes into being when somebody
  // first reads or writes it, at the cost of whose process does.
  //   RESOURCE_EXHAUSTED  memory, quota, descriptors or address space
  static absl::StatusOr<SharedSegment> Create(const std::string& name, size_t bytes,
                                              const std::vector<Part>& made);

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
  // Of the pages that exist.
  size_t committed_bytes() const;
  // Makes whole pages zeros again, and gives them back where that is possible.
  void Clear(Part part) const;

 private:
  std::shared_ptr<UniqueFd> fd_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  PageGuard guard_;
};

// A slots segment with its header filled in, whose only page that is. Errors as SharedSegment::Create.
absl::StatusOr<SharedSegment> CreateSlots(uint64_t session_id, uint64_t incarnation,
                                          const shm::SlotsLayout& layout);

// The records segment of sessions with `num_slots`, with its header filled in. Beyond 256 slots what is of one session
// comes into being as it is used.
absl::StatusOr<SharedSegment> CreateRecords(uint32_t num_slots);
// DATA_LOSS, RESOURCE_EXHAUSTED: as SharedSegment::Adopt; or it is not of so many slots.
absl::StatusOr<SharedSegment> AdoptRecords(std::shared_ptr<UniqueFd> fd, uint32_t num_slots);
inline shm::RecordsView Records(const SharedSegment& s) {
  return shm::RecordsView::Of(s.data(), s.bytes());
}
// A session's claims must not be mistaken for those of the one that had its block before.
void ClearRecordsOf(const SharedSegment& records, uint32_t record_index);

}  // namespace epd
