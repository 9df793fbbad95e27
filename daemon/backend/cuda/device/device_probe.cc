#include "daemon/backend/cuda/device/device_probe.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/backend/cuda/device/device_trials.h"
#include "kernels/cuda/driver/device_words.h"
#include "kernels/cuda/driver/kernel_module.h"

namespace epd::cuda {
namespace {

int Attribute(const DriverTable& driver, int attribute, Device device) {
  int value = 0;
  return driver.device_get_attribute(&value, attribute, device) == kSuccess ? value : 0;
}

void Describe(const DriverTable& driver, Device device, v1::CudaProbe::Device& out) {
  char name[128] = {};
  if (driver.device_get_name(name, sizeof name, device) == kSuccess) out.set_name(name);
  size_t bytes = 0;
  if (driver.device_total_memory(&bytes, device) == kSuccess) out.set_total_bytes(bytes);
  out.set_compute_major(Attribute(driver, kAttributeComputeMajor, device));
  out.set_compute_minor(Attribute(driver, kAttributeComputeMinor, device));
  out.set_multiprocessors(Attribute(driver, kAttributeMultiprocessors, device));
  out.set_compute_mode(Attribute(driver, kAttributeComputeMode, device));
  out.set_mps(Attribute(driver, kAttributeMps, device) != 0);
}

void FindPeers(const DriverTable& driver, Device device, int num_devices,
               v1::CudaProbe::Device& out) {
  for (int peer = 0; peer < num_devices; ++peer) {
    int can = 0;
    if (peer == device) continue;
    if (driver.device_can_access_peer(&can, device, peer) != kSuccess || can == 0) {
      out.add_no_access_to(peer);
    }
  }
}

void Record(const std::string& problem, v1::CudaProbe::Trial& trial) {
  trial.set_done(true);
  trial.set_problem(problem);
}

}  // namespace

void ProbeDevices(const DriverTable& driver, const DeviceTrials& trials, v1::CudaProbe& probe,
                  const Progress& progress) {
  const auto step = [&](const std::string& next) {
    probe.set_step(next);
    progress(probe);
  };
  step("cuInit");
  const Result started = driver.init(0);
  Record(started == kSuccess ? "" : Describe(driver, "cuInit", started), *probe.mutable_init());
  int count = 0;
  if (started != kSuccess || driver.device_get_count(&count) != kSuccess) return;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    v1::CudaProbe::Device& out = *probe.add_devices();
    out.set_ordinal(ordinal);
    Device device = 0;
    if (driver.device_get(&device, ordinal) != kSuccess) continue;
    out.set_id(IdOf(driver, device));
    if (trials.only.value_or(ordinal) != ordinal) continue;
    Describe(driver, device, out);
    FindPeers(driver, device, count, out);
    const std::string where = absl::StrCat(" on device ", ordinal);
    step(absl::StrCat("a context", where));
    ContextTrial context(driver, device);
    Record(context.problem(), *out.mutable_context());
    if (!context.problem().empty()) continue;
    size_t free = 0;
    size_t total = 0;
    if (driver.memory_get_free(&free, &total) == kSuccess) out.set_free_bytes(free);
    step(absl::StrCat("virtual memory", where));
    Record(TryVirtualMemory(driver, device), *out.mutable_virtual_memory());
    step(absl::StrCat("an IPC handle", where));
    Record(TryIpcHandle(driver), *out.mutable_ipc_handle());
    step(absl::StrCat("the kernels", where));
    Record(KernelModule::Load(driver, trials.image).problem, *out.mutable_kernels());
    step(absl::StrCat("stream memory operations", where));
    Record(TryStreamMemoryOperations(driver, context), *out.mutable_stream_memory_operations());
  }
}

}  // namespace epd::cuda
