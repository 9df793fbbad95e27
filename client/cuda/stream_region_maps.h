// The staging that one rank's kernels reach: its own, and with the client executor that of every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/c/group.h"
#include "client/c/status.h"
#include "client/cuda/registered_slots.h"
#include "client/cuda/staging_map.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// Needs the device's context current; not thread-safe. The driver outlives it.
class StreamRegionMaps {
 public:
  StreamRegionMaps(const cuda::DriverTable& driver, int device, uint32_t rank)
      : driver_(driver), device_(device), rank_(rank), own_(driver, device, /*own=*/true) {}
  StreamRegionMaps(const StreamRegionMaps&) = delete;
  StreamRegionMaps& operator=(const StreamRegionMaps&) = delete;

  // Maps what the formation's executor needs, each at the address that it had before. Nothing in a stream
  // may touch any of it meanwhile.
  //   FAILED_PRECONDITION  a rank's staging is on no device or another one
  //   else                 what StagingMap::Map says
  Status Map(const Formation& formation);
  void Unmap();

  // Client executor, after the first Map: writes the StreamRegionTables to `tables` on the device, and waits until
  // they are there. Later calls write nothing: the addresses stay.
  Status WriteTables(const Formation& formation, cuda::DevicePointer tables);

  // Of the own region.
  uint8_t* own(const Formation& formation) const {
    return reinterpret_cast<uint8_t*>(own_.address() + formation.stream_region_offset);
  }

 private:
  Status MapPeers(const Formation& formation);
  Status MapRank(const Formation& formation, uint32_t rank, StagingMap* map);
  std::vector<uint8_t> MakeTables(const Formation& formation) const;

  const cuda::DriverTable& driver_;
  const int device_;
  const uint32_t rank_;
  StagingMap own_;
  std::vector<std::unique_ptr<StagingMap>> peers_;  // By rank; the own one is null.
  bool written_ = false;
};

}  // namespace epd::client
