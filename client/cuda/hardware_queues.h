// Ranks of one process whose streams share a GPU's hardware queues.
//
// CUDA spreads the streams of a process over CUDA_DEVICE_MAX_CONNECTIONS queues of each GPU: 1 to 32, 8 where nothing is said,
// read when the driver begins. What waits in a queue holds up whatever is behind it, of whichever stream. So two ranks of a
// group whose streams share one wait for each other for ever: measured with 1 queue, while 4 ranks on 32 pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c/status.h"

namespace epd::client {

inline constexpr char kQueuesSetting[] = "CUDA_DEVICE_MAX_CONNECTIONS";

// Ranks of `group` on one device of this process, of which `ranks` are open and `rank` is to be. `said`: the setting's text; null:
// unset.
//   FAILED_PRECONDITION  there are fewer than two queues for each: one for its calls, and one for what its program does beside
Status CheckQueues(const std::string& device, const std::vector<uint32_t>& ranks, uint32_t rank,
                   const char* said);

// A rank's place on a device of this process, as long as it lives.
class RankOnDevice {
 public:
  struct Place {
    const void* driver;
    int device;
    std::string group;
    uint32_t rank;
  };
  // Takes it, by the setting of this process. `name`: of the device, for the text. Thread-safe. Errors as CheckQueues.
  static Status Take(const Place& place, const std::string& name,
                     std::unique_ptr<RankOnDevice>* taken);
  ~RankOnDevice();
  RankOnDevice(const RankOnDevice&) = delete;
  RankOnDevice& operator=(const RankOnDevice&) = delete;

 private:
  explicit RankOnDevice(Place place) : place_(std::move(place)) {}
  const Place place_;
};

}  // namespace epd::client
