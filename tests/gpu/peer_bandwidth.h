// How fast each GPU of a machine reads the memory of each other one, which bounds rows that go directly.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/gpu/timed_device.h"

namespace epd::gpu {

// Of one direction; bytes that cross count once.
struct PeerBandwidth {
  int reader = 0;
  int owner = 0;
  bool access = false;     // Else copies go by way of the host, and kernels cannot read there.
  double copy_gbps = 0;    // By the driver's own copy.
  double kernel_gbps = 0;  // By the kernel that copies rows, which reads as dispatch does.
};

// Of all pairs, both directions; none where there is one GPU. `image`: the kernels. Moves `bytes` at a time. Leaves the
// context of the first device current. Ends the program where a call fails.
std::vector<PeerBandwidth> MeasurePeers(const Driver& driver, const void* image, Repeats repeats,
                                        std::size_t bytes);

// As a JSON array.
void PrintPeers(const std::vector<PeerBandwidth>& peers);

}  // namespace epd::gpu
