// What a stream capture does, over the table of a driver: calls are remembered in place of made, and
// made again at each replay, with the bytes that they had. Memory cannot be allocated meanwhile.
#pragma once

#include <functional>
#include <vector>

#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

// One at a time per process.
class FakeGraph {
 public:
  explicit FakeGraph(const DriverTable& driver);
  ~FakeGraph();

  // To be used in place of the driver's own.
  const DriverTable& table() const { return table_; }

  using Calls = std::vector<std::function<Result(Stream)>>;
  // What this thread puts into streams from now on goes into the graph that End returns.
  void Begin();
  Calls End();
  // The first call's error, or kSuccess.
  static Result Replay(const Calls& calls, Stream stream);

  const DriverTable& driver() const { return driver_; }

 private:
  const DriverTable& driver_;
  DriverTable table_;
};

}  // namespace epd::cuda
