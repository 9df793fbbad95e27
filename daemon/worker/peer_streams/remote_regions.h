// Where rows from other nodes may be written: regions of operations that are granted and not over.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/worker/engine/effects.h"
#include "daemon/worker/peer_streams/frame.h"

namespace epd {

// Of a rank of another worker.
struct RemoteRegion {
  char* begin = nullptr;  // In this process.
  // The worker that the formation names for it: its rows come from there alone.
  Incarnation server;
};

// Thread-safe.
class RemoteRegions {
 public:
  // [num_ranks of other nodes]
  void Open(const PeerOperation& operation, uint64_t bytes, std::map<Rank, RemoteRegion> regions);
  // When it returns, nobody writes into the operation's region.
  void Close(const PeerOperation& operation);

  enum class Outcome {
    kDropped,   // Nobody waits for these rows any more.
    kMore,      // Taken.
    kComplete,  // Taken, and it was all of the rank's.
    kBad,       // Outside of the region, or more than was said.
    kForeign,   // Of a rank that another worker serves.
  };
  // Writes the pieces of a frame that `from` has sent, from `parts` in order.
  Outcome Land(Incarnation from, const RowsFrame& frame, const std::vector<RowsPiece>& pieces,
               const std::vector<std::pair<const char*, size_t>>& parts);

 private:
  struct Place {
    std::mutex writing;
    bool open = true;
    uint64_t bytes = 0;
    std::map<Rank, RemoteRegion> regions;
    std::map<Rank, uint64_t> landed;
  };
  std::mutex mutex_;
  std::map<PeerOperation, std::shared_ptr<Place>> places_;
};

}  // namespace epd
