#include "client/c/session_slots.h"

namespace epd::client {

Status SessionSlots::Map(std::vector<UniqueFd>& fds, size_t first, const Attached& attached,
                         std::shared_ptr<SessionSlots>* slots) {
  struct stat facts = {};
  if (fstat(fds[first].get(), &facts) != 0) facts.st_size = 0;
  const auto bytes = static_cast<uint64_t>(facts.st_size);
  Mapping mapping;
  if (Status s = Mapping::Map(fds[first].get(), bytes, /*writable=*/true, &mapping); !s.ok()) {
    return s;
  }
  shm::SlotsView view;
  if (const shm::SegmentFault fault =
          shm::SlotsView::Open(mapping.data(), bytes, shm::kReadVersions, &view);
      !fault.ok()) {
    return {fault.code, "the daemon sent what this library cannot use: " + fault.text};
  }
  const shm::SlotsHeader& header = view.header();
  if (header.session_id != attached.session_id || header.incarnation != attached.incarnation) {
    return MakeStatus(Code::kDataLoss, "the daemon sent another session's slots segment");
  }
  slots->reset(new SessionSlots(std::move(mapping), std::move(fds[first + 1]), view));
  return {};
}

}  // namespace epd::client
