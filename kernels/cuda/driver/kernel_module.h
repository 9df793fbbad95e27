// The CUDA kernels in a device's context, and how a list of launches gets into a stream.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/cuda/driver/driver_table.h"
#include "kernels/cuda/launch.h"

namespace epd::cuda {

class KernelModule;

// Kernels, or the reason why there are none: a driver too old for the image, a device without code in it
// (compute capability below 8.0), or an image without a kernel that this program launches.
struct LoadedKernels {
  std::unique_ptr<KernelModule> module;
  std::string problem;  // "": `module` is there.
};

// Needs the device's context current on the calling thread; not thread-safe. The driver outlives it.
// Loads and finds everything in Load, so that Put makes nothing and waits for nothing.
class KernelModule {
 public:
  // `image` is a fatbin: KernelImage().data unless a test says otherwise.
  static LoadedKernels Load(const DriverTable& driver, const void* image);
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;
  ~KernelModule();

  // Puts the launches into the stream, in order; what DeviceWork::Start calls. Returns the driver's
  // first bad code; launches before that one are in the stream.
  Result Put(const LaunchList& list, Stream stream) const;

 private:
  explicit KernelModule(const DriverTable& driver) : driver_(driver) {}
  std::string Find(const KernelShape& kernel);

  const DriverTable& driver_;
  Module module_ = nullptr;
  std::map<std::string, Function, std::less<>> functions_;
};

}  // namespace epd::cuda
