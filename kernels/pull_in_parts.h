// The receiving halves of scatter and gather (scatter_rows.h, gather_reduce_rows.h), some at a time: for whoever has others'
// rows to move in between. The same bytes, in the same order.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/gather_reduce_rows.h"
#include "kernels/kernel_error.h"
#include "kernels/scatter_rows.h"

namespace epd {

// One pull. Not thread-safe, but its parts may be done on different threads.
class PullInParts {
 public:
  virtual ~PullInParts() = default;

  // Reads and writes about `bytes` more, or what cannot be divided: a row, or what is looked up before the first one. False:
  // there is no more to do.
  virtual bool Some(std::uint64_t bytes) = 0;
  // Of what was done until now: as of PullScatter and PullGather, but that nothing zeroes the outputs.
  const KernelError& error() const { return error_; }

 protected:
  KernelError error_;
};

// What `args` point to stays as it is until the pull has ended.
std::unique_ptr<PullInParts> MakeScatterPull(const PullScatterArgs& args);
std::unique_ptr<PullInParts> MakeGatherPull(const PullGatherArgs& args);

}  // namespace epd
