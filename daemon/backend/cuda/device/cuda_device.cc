#include "daemon/backend/cuda/device/cuda_device.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/device_image.h"
#include "kernels/cuda/driver/device_shape.h"
#include "kernels/cuda/driver/device_words.h"

namespace epd::cuda {
namespace {

constexpr int kLeastComputeCapability = 80;
// Beside the staging, for plans and tables of moves.
constexpr uint64_t kLeastScratch = uint64_t{8} << 20;
constexpr uint64_t kScratchShare = 16;

absl::Status Unusable(const DriverTable& driver, const char* call, Result code) {
  return absl::FailedPreconditionError(epd::cuda::Describe(driver, call, code));
}

// Taking away what a device may still use could wait for ever: it stays, reachable, until the end of the process.
void Abandon(std::unique_ptr<KernelModule> kernels, std::unique_ptr<CudaStagingPool> staging) {
  using Kept = std::pair<std::unique_ptr<KernelModule>, std::unique_ptr<CudaStagingPool>>;
  ABSL_CONST_INIT static absl::Mutex mutex(absl::kConstInit);
  static auto* const kept = new std::vector<Kept>;
  absl::MutexLock lock(&mutex);
  kept->emplace_back(std::move(kernels), std::move(staging));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(const DriverTable& driver,
                                                             const CudaDeviceOptions& options) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver));
  if (absl::Status described = device->Describe(options); !described.ok()) return described;
  if (absl::Status prepared = device->Prepare(options); !prepared.ok()) return prepared;
  return device;
}

absl::Status CudaDevice::Describe(const CudaDeviceOptions& options) {
  ordinal_ = options.ordinal;
  if (const Result code = driver_.init(0); code != kSuccess) {
    return Unusable(driver_, "cuInit", code);
  }
  if (const Result code = driver_.device_get(&device_, options.ordinal); code != kSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no device ", options.ordinal, ": ", epd::cuda::Describe(driver_, "cuDeviceGet", code)));
  }
  if (const Result code = ReadDeviceShape(driver_, device_, &shape_); code != kSuccess) {
    return Unusable(driver_, "cuDeviceGetAttribute", code);
  }
  if (shape_.compute_capability < kLeastComputeCapability) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", options.ordinal, " has compute capability ", shape_.compute_capability / 10, ".",
        shape_.compute_capability % 10, ", expected at least 8.0"));
  }
  const std::string bad = ReadBulkSetting(options.bulk_setting, &shape_);
  if (!bad.empty()) return absl::InvalidArgumentError(bad);
  const absl::string_view reads = options.peer_setting == nullptr ? "yes" : options.peer_setting;
  if (reads != "yes" && reads != "no") {
    return absl::InvalidArgumentError(
        absl::StrCat(kPeerSetting, ": got '", reads, "', expected yes or no"));
  }
  reads_peers_ = reads == "yes";
  shape_.max_num_sms = options.max_num_sms;
  char name[128] = {};
  driver_.device_get_name(name, sizeof name - 1, device_);
  name_ = name;
  Uuid uuid = {};
  driver_.device_get_uuid(&uuid, device_);
  uuid_.assign(uuid.bytes, sizeof uuid.bytes);
  size_t total = 0;
  driver_.device_total_memory(&total, device_);
  total_bytes_ = total;
  return absl::OkStatus();
}

absl::Status CudaDevice::Prepare(const CudaDeviceOptions& options) {
  if (const Result code = driver_.primary_context_retain(&context_, device_); code != kSuccess) {
    return absl::FailedPreconditionError(DescribeNoContext(driver_, device_, code));
  }
  retained_ = true;
  if (const Result code = driver_.context_set_current(context_); code != kSuccess) {
    return Unusable(driver_, "cuCtxSetCurrent", code);
  }
  absl::StatusOr<DeviceStreams> streams =
      DeviceStreams::Create(driver_, kNumMoveStreams + kMaxCommunicators);
  if (!streams.ok()) return streams.status();
  streams_.emplace(*std::move(streams));
  LoadedKernels kernels =
      KernelModule::Load(driver_, options.image == nullptr ? KernelImage().data : options.image);
  if (!kernels.problem.empty()) return absl::FailedPreconditionError(kernels.problem);
  kernels_ = std::move(kernels.module);
  DeviceWork::Options work;
  work.limit = options.limit;
  absl::StatusOr<DeviceWork> made = DeviceWork::Create(driver_, *streams_, work);
  if (!made.ok()) return made.status();
  work_.emplace(*std::move(made));
  StagingPoolOptions staging;
  staging.device = device_;
  staging.budget_bytes =
      options.staging_bytes + std::max(kLeastScratch, options.staging_bytes / kScratchShare);
  staging.sharing = options.sharing;
  absl::StatusOr<std::unique_ptr<CudaStagingPool>> pool =
      CudaStagingPool::Create(driver_, *streams_, staging);
  if (!pool.ok()) return pool.status();
  staging_ = *std::move(pool);
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  const bool idle = !streams_.has_value() || streams_->CheckIdle().ok();
  if (!idle) {
    Abandon(std::move(kernels_), std::move(staging_));
    return;
  }
  staging_.reset();
  work_.reset();
  kernels_.reset();
  streams_.reset();
  if (!retained_) return;
  driver_.context_set_current(nullptr);
  driver_.primary_context_release(device_);
}

}  // namespace epd::cuda
