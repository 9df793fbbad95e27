// epd-worker: runs the operations of one device of the node. Started by epd, never by hand.
#include <sys/prctl.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "daemon/backend/cpu/cpu_backend.h"
#include "daemon/backend/cuda/device/machine_probe.h"
#include "daemon/backend/cuda/serve_cuda.h"
#include "daemon/backend/nccl_library.h"
#include "daemon/backend/unique_id_child.h"
#include "daemon/doctor/cuda_doctor_main.h"
#include "daemon/doctor/port_doctor.h"
#include "daemon/shared_memory/page_process.h"
#include "daemon/worker/shell/worker_main.h"

namespace {

epd::cuda::SharingChoice SharingOf(const std::string& staging) {
  if (staging == "vmm") return epd::cuda::SharingChoice::kDescriptor;
  return staging == "ipc" ? epd::cuda::SharingChoice::kIpcHandle : epd::cuda::SharingChoice::kAuto;
}

void Describe(const epd::cuda::CudaDevice& device, int ordinal, epd::v1::WorkerReady::Device& out) {
  out.set_name(device.name());
  out.set_uuid(device.uuid());
  out.set_bytes(device.total_bytes());
  out.set_staging_bytes(device.staging().budget_bytes());
  out.set_sharing(device.staging().sharing() == epd::cuda::Sharing::kDescriptor ? "vmm" : "ipc");
  out.set_ordinal(ordinal);
  out.set_client_memory_fraction(epd::cuda::ClientMemoryFraction(
      device.total_bytes(), device.staging().budget_bytes(), /*num_clients=*/1));
}

// Where the GPU cannot be used, the worker says to every group why.
void AddCuda(const epd::v1::WorkerHello& hello, epd::ServedBackends& served) {
  epd::cuda::CudaDeviceOptions options;
  options.ordinal = hello.cuda_device();
  options.staging_bytes = hello.cuda_staging_bytes();
  options.sharing = SharingOf(hello.staging());
  options.max_num_sms = hello.max_num_sms();
  options.limit =
      absl::Seconds(hello.cuda_limit().seconds()) + absl::Nanoseconds(hello.cuda_limit().nanos());
  const epd::NcclLibrary nccl(epd::NcclCandidates(hello.nccl_library(), epd::SelfPath()));
  absl::StatusOr<std::unique_ptr<epd::cuda::CudaBackend>> cuda =
      epd::cuda::ServeCuda(options, epd::SelfPath(), nccl.path(), nccl.problem());
  if (!cuda.ok()) {
    served.no_cuda = std::string(cuda.status().message());
    return;
  }
  Describe((*cuda)->device(), options.ordinal, served.cuda.emplace());
  served.backends.insert(served.backends.begin(), *std::move(cuda));
}

absl::StatusOr<epd::ServedBackends> Make(const epd::v1::WorkerHello& hello) {
  absl::StatusOr<std::unique_ptr<epd::CpuBackend>> cpu = epd::CpuBackend::Create(hello.simd());
  if (!cpu.ok()) return cpu.status();
  epd::ServedBackends served;
  served.backends.push_back(*std::move(cpu));
  if (!hello.has_cuda_device()) {
    served.no_cuda = "it is the CPU's";
  } else {
    AddCuda(hello, served);
  }
  return served;
}

}  // namespace

int main(int argc, char** argv) {
  // Nobody of epd's own user reads its memory or takes its descriptors, from /proc or as a debugger.
  if (getenv("EPD_DUMPABLE") == nullptr) prctl(PR_SET_DUMPABLE, 0);
  // Of whoever started epd. Workers count the machine's GPUs, as clients do when they name one to epd.
  unsetenv("CUDA_VISIBLE_DEVICES");
  absl::string_view argument = argc == 2 ? argv[1] : "";
  if (argument == epd::kPageProcessFlag) return epd::PageProcessMain(/*socket=*/3);
  if (absl::ConsumePrefix(&argument, epd::kUniqueIdFlag)) {
    return epd::UniqueIdChildMain(std::string(argument));
  }
  if (absl::ConsumePrefix(&argument, epd::cuda::kProbeFlag)) {
    return epd::cuda::ProbeChildMain(std::string(argument), epd::SelfPath());
  }
  if (absl::ConsumePrefix(&argument, epd::kDoctorFlag)) {
    return epd::CudaDoctorMain(std::string(argument), epd::SelfPath());
  }
  if (absl::ConsumePrefix(&argument, epd::kPortDoctorFlag)) {
    return epd::PortDoctorMain(std::string(argument));
  }
  return epd::WorkerMain(argument, &Make);
}
