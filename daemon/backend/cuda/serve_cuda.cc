#include "daemon/backend/cuda/serve_cuda.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/device/machine_probe.h"
#include "kernels/cuda/driver/device_shape.h"
#include "kernels/cuda/driver/device_words.h"

namespace epd::cuda {
namespace {

// What the child found wrong, or "".
std::string ProblemOf(const ProbeResult& result, int ordinal) {
  const v1::CudaProbe& probe = result.probe;
  if (!result.end.empty()) {
    return absl::StrCat("trying the driver, a process ", result.end, " in ", probe.step());
  }
  if (!probe.init().problem().empty()) return probe.init().problem();
  if (probe.devices_size() <= ordinal) {
    return absl::StrCat("the driver shows ", probe.devices_size(), " devices, no device ", ordinal);
  }
  const v1::CudaProbe::Device& device = probe.devices(ordinal);
  const std::string why = WhyShutOut(device.compute_mode(), device.mps(), device.id());
  return why.empty() ? "" : absl::StrCat("of cuda:", ordinal, " ", device.id(), ": ", why);
}

LoadedNccl Nccl(const std::string& path, const std::string& why_none) {
  if (!path.empty()) return LoadNccl(path);
  LoadedNccl none;
  none.problem = why_none.empty() ? "there is no libnccl" : why_none;
  return none;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> ServeCuda(const CudaDeviceOptions& options,
                                                       const std::string& self,
                                                       const std::string& nccl_path,
                                                       const std::string& no_nccl) {
  // Read at cuInit. With NCCL's own there are more streams than the 8 hardware queues of the default; two that share one
  // wait for each other, and two communicators crosswise. What is set already is meant for others: a private daemon has the
  // environment of the training that started it, which may say 1 (Megatron's).
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*replace=*/1);
  // Lives as long as the process, as the library does.
  static const LoadedDriver& driver = *new LoadedDriver(LoadDriver());
  if (!driver.ok()) return absl::FailedPreconditionError(driver.problem);
  const std::string problem = ProblemOf(
      ProbeInChild(self, absl::StrCat(kOneDevice, options.ordinal), kProbeLimit), options.ordinal);
  if (!problem.empty()) return absl::FailedPreconditionError(problem);
  CudaDeviceOptions device_options = options;
  device_options.bulk_setting = std::getenv(kBulkSetting);
  device_options.peer_setting = std::getenv(kPeerSetting);
  absl::StatusOr<std::unique_ptr<CudaDevice>> device =
      CudaDevice::Open(driver.table, device_options);
  if (!device.ok()) return device.status();
  static const LoadedNccl& nccl = *new LoadedNccl(Nccl(nccl_path, no_nccl));
  return std::make_unique<CudaBackend>(*std::move(device), options.limit, &nccl, self);
}

}  // namespace epd::cuda
