// One device as a worker owns it: context, streams, kernels, staging, all made before the first group.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/backend/cuda/device/device_streams.h"
#include "daemon/backend/cuda/device/device_work.h"
#include "daemon/backend/cuda/staging/staging_pool.h"
#include "kernels/cuda/driver/driver_table.h"
#include "kernels/cuda/driver/kernel_module.h"
#include "kernels/cuda/launch.h"

namespace epd::cuda {

// Streams of a device: the first ones for moves within the worker, then one for each communicator. NCCL's
// kernels wait for other members, so two communicators never stand one behind the other.
inline constexpr int kNumMoveStreams = 4;
inline constexpr int kMaxCommunicators = 8;

// The environment's variable, of epd, whose workers inherit it: "no" lets rows between a node's devices go by NCCL, where
// they could go directly.
inline constexpr char kPeerSetting[] = "EPD_CUDA_PEER_ACCESS";

struct CudaDeviceOptions {
  int ordinal = 0;
  uint64_t staging_bytes = 0;
  SharingChoice sharing = SharingChoice::kAuto;
  int32_t max_num_sms = 0;  // For kernels that move rows; 0: all.
  const char* bulk_setting =
      nullptr;  // The text of kBulkSetting (kernels/cuda/driver/device_shape.h).
  const char* peer_setting = nullptr;  // The text of kPeerSetting.
  absl::Duration limit = absl::Seconds(30);
  const void* image = nullptr;  // The kernels; null: those of this program.
};

// All but the constructor's arguments is const to the thread that made it, whose current context it is.
// Not thread-safe. Destroyed, it leaves to the end of the process what a stream may still use.
class CudaDevice {
 public:
  // Takes the device's primary context and reserves the staging, and as much beside it as moves need
  // for themselves. The table outlives the device.
  //   INVALID_ARGUMENT     a setting's text
  //   FAILED_PRECONDITION  no such device, or it lacks what a worker cannot do without (why)
  //   RESOURCE_EXHAUSTED   it has not that much memory left
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const DriverTable& driver,
                                                          const CudaDeviceOptions& options);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const DriverTable& driver() const { return driver_; }
  Context context() const { return context_; }
  int ordinal() const { return ordinal_; }
  DeviceStreams& streams() { return *streams_; }
  const DeviceStreams& streams() const { return *streams_; }
  const KernelModule& kernels() const { return *kernels_; }
  DeviceWork& work() { return *work_; }
  const DeviceWork& work() const { return *work_; }
  CudaStagingPool& staging() { return *staging_; }
  const CudaStagingPool& staging() const { return *staging_; }
  const DeviceShape& shape() const { return shape_; }
  const std::string& name() const { return name_; }
  const std::string& uuid() const { return uuid_; }  // 16 bytes.
  uint64_t total_bytes() const { return total_bytes_; }
  // Whether it may read other devices' memory.
  bool reads_peers() const { return reads_peers_; }

 private:
  explicit CudaDevice(const DriverTable& driver) : driver_(driver) {}
  absl::Status Describe(const CudaDeviceOptions& options);
  absl::Status Prepare(const CudaDeviceOptions& options);

  const DriverTable& driver_;
  Device device_ = 0;
  int ordinal_ = 0;
  Context context_ = nullptr;
  bool retained_ = false;
  std::string name_;
  std::string uuid_;
  uint64_t total_bytes_ = 0;
  bool reads_peers_ = true;
  DeviceShape shape_;
  std::optional<DeviceStreams> streams_;
  std::unique_ptr<KernelModule> kernels_;
  std::optional<DeviceWork> work_;
  std::unique_ptr<CudaStagingPool> staging_;
};

}  // namespace epd::cuda
