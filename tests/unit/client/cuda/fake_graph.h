// What a stream capture does, over the table of a driver: calls are remembered in place of made, and
// made again at each replay, with the bytes that they had.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"

namespace epd::client {

// One at a time per process.
class FakeGraph {
 public:
  explicit FakeGraph(const cuda::DriverTable& driver);
  ~FakeGraph();

  // To be used in place of the driver's own.
  const cuda::DriverTable& table() const { return table_; }

  using Calls = std::vector<std::function<cuda::Result(cuda::Stream)>>;
  // What this thread puts into streams from now on goes into the graph that End returns.
  void Begin();
  Calls End();
  static void Replay(const Calls& calls, cuda::Stream stream);

  const cuda::DriverTable& driver() const { return driver_; }

 private:
  const cuda::DriverTable& driver_;
  cuda::DriverTable table_;
};

}  // namespace epd::client
