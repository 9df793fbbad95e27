// Numbered places in devices' streams, and how long a device took from one to another.
//
// A place is an event. In a stream it is recorded as the stream comes to it. In a stream that is being captured it becomes a
// node of the graph, so that each replay records it anew, between the nodes before and behind it: a plain record would
// only tie the capture's branches together and be lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/driver.h"

namespace epd::gpu {

// Record may be called by a thread of each device at once; the rest by one.
class EventMarks {
 public:
  // `driver` outlives this.
  explicit EventMarks(const Driver& driver) : driver_(driver) {}

  // Makes `marks` events on each of the first `devices` devices, in their primary contexts, the last of which stays current.
  // What is wrong, or nothing.
  std::string Make(int devices, int marks);

  // Puts the place `number` into a stream of `device`; makes nothing, so it may be captured. What is wrong, or nothing.
  std::string Record(int device, std::int64_t number, CUstream stream);

  // Of the last time that the device came to both; negative: it has not.
  double ElapsedUs(int device, std::int64_t from, std::int64_t to) const;

  // How many places became nodes of graphs.
  std::int64_t captured() const { return captured_; }

 private:
  CUevent At(int device, std::int64_t number) const;
  std::string Named(CUresult result, const char* what) const;

  const Driver& driver_;
  std::vector<std::vector<CUevent>> events_;  // [device][number]
  std::atomic<std::int64_t> captured_ = 0;
};

}  // namespace epd::gpu
