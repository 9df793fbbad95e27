// Small experiments with a driver, each of which gives back what it takes.
#pragma once

#include <string>

#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {

// A device's primary context, current on this thread for as long as this lives.
class ContextTrial {
 public:
  ContextTrial(const DriverTable& driver, Device device);
  ~ContextTrial();
  ContextTrial(const ContextTrial&) = delete;
  ContextTrial& operator=(const ContextTrial&) = delete;

  const std::string& problem() const { return problem_; }  // "": it is there.
  // Leaves the context to the end of the process: something in it will never end.
  void Abandon() { retained_ = false; }

 private:
  const DriverTable& driver_;
  const Device device_;
  bool retained_ = false;
  std::string problem_;
};

// What an arena of this device's memory is asked for with: exported as a descriptor, and where the device offers it open to
// network cards. What is tried is what is used.
AllocationProperties StagingProperties(const DriverTable& driver, Device device);

// Each needs a current context and returns why it does not work, or "".

// An allocation, exported as a descriptor, imported, mapped and made accessible.
std::string TryVirtualMemory(const DriverTable& driver, Device device);

// A plain allocation and its 64-byte handle.
std::string TryIpcHandle(const DriverTable& driver);

// A stream that writes one word of registered host memory and waits for another, which this thread
// writes then. Takes at most two seconds. A wait that does not end is left behind with its `context`,
// since taking anything away would block for ever.
std::string TryStreamMemoryOperations(const DriverTable& driver, ContextTrial& context);

}  // namespace epd::cuda
