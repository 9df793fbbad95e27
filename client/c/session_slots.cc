#include "client/c/session_slots.h"

namespace epd::client {
namespace {

Status CheckHeader(const shm::SlotsHeader& header, uint64_t bytes, const Attached& attached) {
  if (header.magic != shm::kSlotsMagic || header.version != shm::kSegmentVersion ||
      header.header_bytes != sizeof(shm::SlotsHeader) || header.segment_bytes != bytes ||
      header.num_slots != shm::kSlotsPerSession || header.slot_bytes != sizeof(shm::Slot)) {
    return MakeStatus(Code::kDataLoss,
                      "the daemon's slots segment is of version %u with %u slots of %u bytes; this "
                      "library knows version %u with %u of %zu; upgrade the older one",
                      header.version, header.num_slots, header.slot_bytes, shm::kSegmentVersion,
                      shm::kSlotsPerSession, sizeof(shm::Slot));
  }
  if (header.session_id != attached.session_id || header.incarnation != attached.incarnation) {
    return MakeStatus(Code::kDataLoss, "the daemon sent another session's slots segment");
  }
  return {};
}

}  // namespace

Status SessionSlots::Map(std::vector<UniqueFd>& fds, size_t first, const Attached& attached,
                         std::shared_ptr<SessionSlots>* slots) {
  const uint64_t bytes = sizeof(shm::SlotsSegment);
  Mapping mapping;
  if (Status s = Mapping::Map(fds[first].get(), bytes, /*writable=*/true, &mapping); !s.ok()) {
    return s;
  }
  const auto* segment = reinterpret_cast<const shm::SlotsSegment*>(mapping.data());
  if (Status s = CheckHeader(segment->header, bytes, attached); !s.ok()) return s;
  slots->reset(new SessionSlots(std::move(mapping), std::move(fds[first + 1])));
  return {};
}

}  // namespace epd::client
