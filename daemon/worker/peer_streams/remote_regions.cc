#include "daemon/worker/peer_streams/remote_regions.h"

#include <algorithm>
#include <cstring>

namespace epd {

void RemoteRegions::Open(const PeerOperation& operation, uint64_t bytes,
                         std::map<Rank, RemoteRegion> regions) {
  auto place = std::make_shared<Place>();
  place->bytes = bytes;
  place->regions = std::move(regions);
  const std::lock_guard lock(mutex_);
  places_[operation] = std::move(place);
}

void RemoteRegions::Close(const PeerOperation& operation) {
  std::shared_ptr<Place> place;
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(operation);
    if (found == places_.end()) return;
    place = std::move(found->second);
    places_.erase(found);
  }
  const std::lock_guard lock(place->writing);
  place->open = false;
}

RemoteRegions::Outcome RemoteRegions::Land(
    Incarnation from, const RowsFrame& frame, const std::vector<RowsPiece>& pieces,
    const std::vector<std::pair<const char*, size_t>>& parts) {
  std::shared_ptr<Place> place;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        places_.find({GroupId(frame.group), Formation(frame.formation), frame.number});
    if (found == places_.end()) return Outcome::kDropped;
    place = found->second;
  }
  const std::lock_guard lock(place->writing);
  if (!place->open) return Outcome::kDropped;
  const auto region = place->regions.find(Rank(frame.rank));
  if (region == place->regions.end()) return Outcome::kBad;
  if (region->second.server != from) return Outcome::kForeign;
  uint64_t& landed = place->landed[Rank(frame.rank)];
  if (landed > frame.total) return Outcome::kBad;  // An earlier frame said more.
  auto part = parts.begin();
  size_t used = 0;  // Of `part`.
  for (const RowsPiece& piece : pieces) {
    if (piece.bytes > place->bytes || piece.offset > place->bytes - piece.bytes ||
        piece.bytes > frame.total - landed) {
      return Outcome::kBad;
    }
    char* to = region->second.begin + piece.offset;
    for (uint64_t left = piece.bytes; left > 0;) {
      if (part == parts.end()) return Outcome::kBad;
      const size_t now = std::min<uint64_t>(left, part->second - used);
      std::memcpy(to, part->first + used, now);
      to += now;
      left -= now;
      used += now;
      if (used < part->second) continue;
      ++part;
      used = 0;
    }
    landed += piece.bytes;
  }
  return landed == frame.total ? Outcome::kComplete : Outcome::kMore;
}

}  // namespace epd
