#include "daemon/doctor/cuda_doctor.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/nccl_version.h"
#include "daemon/doctor/findings.h"
#include "kernels/cuda/driver/device_words.h"

namespace epd {
namespace {

using Device = v1::CudaProbe::Device;
using Trial = v1::CudaProbe::Trial;

constexpr int kOldestComputeMajor = 8;
constexpr int kNcclEpComputeMajor = 9;
constexpr int kOldestDriver = 525;

constexpr char kNoCuda[] = "no group can use the cuda backend on this node";
constexpr char kInstallDriver[] =
    "install NVIDIA's driver 525 or newer; in a container start it with the GPUs (--gpus all)";

bool Works(const Trial& trial) { return trial.done() && trial.problem().empty(); }

std::string Show(const Trial& trial) {
  if (!trial.done()) return "not tried";
  return trial.problem().empty() ? "works" : trial.problem();
}

// CUDA codes 13.2 as 13020.
std::string CudaVersion(int code) { return absl::StrCat(code / 1000, ".", code % 1000 / 10); }

std::string Name(const Device& device) { return absl::StrCat("cuda:", device.ordinal()); }

// What keeps epd's worker and its clients from sharing the device.
std::string ShutOut(const Device& device) {
  return cuda::WhyShutOut(device.compute_mode(), device.mps(), device.id());
}

std::string ModeOf(const Device& device) {
  return device.compute_mode() == cuda::kComputeModeExclusiveProcess
             ? "compute mode EXCLUSIVE_PROCESS"
             : "compute mode PROHIBITED";
}

bool HasGpu(const v1::CudaProbe& probe) {
  return probe.gpu_hardware() || probe.devices_size() > 0 || !probe.kernel_driver().empty();
}

v1::Finding Probing(const v1::CudaProbe& probe, const std::string& end) {
  return MakeFinding("cuda probe", false,
                     absl::StrCat("the process that looks for CUDA ", end,
                                  probe.step().empty() ? "" : absl::StrCat(" at ", probe.step())),
                     "what comes after that step is unknown; epd itself is not touched",
                     "run 'epd-worker --probe-cuda=' by hand to see what the library prints, and "
                     "replace or remove that library");
}

v1::Finding Driver(const v1::CudaProbe& probe) {
  const v1::CudaProbe::Library& driver = probe.driver();
  const bool ok = driver.problem().empty() && Works(probe.init());
  std::string found;
  if (!driver.problem().empty()) {
    found = driver.problem();
  } else {
    found = absl::StrCat("CUDA ", CudaVersion(driver.version()), " at ", driver.path());
    if (!probe.kernel_driver().empty()) absl::StrAppend(&found, ", kernel ", probe.kernel_driver());
    if (!Works(probe.init())) absl::StrAppend(&found, "; ", Show(probe.init()));
  }
  if (!probe.missing_calls().empty()) {
    absl::StrAppend(&found, "; ", absl::StrJoin(probe.missing_calls(), ", "));
  }
  return MakeFinding("cuda driver", ok, found, kNoCuda, kInstallDriver);
}

v1::Finding DeviceItself(const Device& device) {
  const bool new_enough = device.compute_major() >= kOldestComputeMajor;
  const bool opens = Works(device.context());
  const std::string shut_out = ShutOut(device);
  std::string found =
      absl::StrCat(device.name(), " ", device.id(), ", compute capability ", device.compute_major(),
                   ".", device.compute_minor(), ", ", device.multiprocessors(), " SMs, ",
                   device.free_bytes() >> 20, " of ", device.total_bytes() >> 20, " MiB free");
  if (!opens) absl::StrAppend(&found, "; a context: ", Show(device.context()));
  if (new_enough && !shut_out.empty()) {
    return MakeFinding(Name(device), false, absl::StrCat(found, "; ", ModeOf(device)),
                       absl::StrCat("no group can be served on ", Name(device), ": ", shut_out),
                       absl::StrCat("as root: nvidia-smi -i ", device.id(),
                                    " -c DEFAULT (what sets the mode, such as a prolog of Slurm's, "
                                    "sets it again)"));
  }
  return MakeFinding(
      Name(device), new_enough && opens, found,
      absl::StrCat("the cuda backend cannot use ", Name(device)),
      new_enough ? "free the device" : "use a GPU of compute capability 8.0 or newer");
}

v1::Finding Staging(const Device& device) {
  const StagingWay way = BestStaging(device);
  const std::string found =
      absl::StrCat("virtual memory by descriptor: ", Show(device.virtual_memory()),
                   "; IPC handles: ", Show(device.ipc_handle()));
  v1::Finding finding =
      MakeFinding(absl::StrCat(Name(device), " staging"), way != StagingWay::kNone, found,
                  "clients cannot map this device's staging, so the cuda backend cannot use it",
                  "use a driver, container or virtual GPU that offers one of the two");
  if (way == StagingWay::kIpcHandle) {
    finding.set_consequence("staging is shared by IPC handles, which die with their worker");
    finding.set_fix("use a driver that exports virtual memory (not WSL2, not every virtual GPU)");
  }
  return finding;
}

v1::Finding Kernels(const v1::CudaProbe& probe, const Device& device) {
  const int oldest = probe.kernels_driver();
  return MakeFinding(
      absl::StrCat(Name(device), " kernels"), Works(device.kernels()),
      absl::StrCat(Show(device.kernels()), "; they need NVIDIA's driver ", oldest, " or newer"),
      absl::StrCat("the cuda backend cannot use ", Name(device)),
      absl::StrCat("install NVIDIA's driver ", oldest, " or newer",
                   oldest > kOldestDriver
                       ? absl::StrCat(", or a build of epd with a ptxas of CUDA 12, whose kernels "
                                      "need ",
                                      kOldestDriver)
                       : ""));
}

v1::Finding MemoryOperations(const Device& device) {
  return MakeFinding(absl::StrCat(Name(device), " stream memory operations"),
                     Works(device.stream_memory_operations()),
                     Show(device.stream_memory_operations()),
                     "a stream cannot wait for epd, so the cuda backend cannot use this device",
                     "use driver 525 or newer on Linux; virtual GPUs and WSL2 may not offer them");
}

v1::Finding Peers(const v1::CudaProbe& probe) {
  std::vector<std::string> without;
  for (const Device& device : probe.devices()) {
    for (const int peer : device.no_access_to()) {
      without.push_back(absl::StrCat(device.ordinal(), "->", peer));
    }
  }
  return MakeFinding(
      "cuda peer access", without.empty(),
      without.empty() ? absl::StrCat("between all ", probe.devices_size(), " devices")
                      : absl::StrCat("none from device to device: ", absl::StrJoin(without, ", ")),
      "groups with ranks on both of such a pair move all their rows by NCCL; others of this node "
      "read "
      "each other's memory",
      "see 'nvidia-smi topo -p2p r'; switch off ACS and IOMMU translation between them");
}

v1::Finding Mps(const v1::CudaProbe& probe) {
  const bool on =
      absl::c_any_of(probe.devices(), [](const Device& device) { return device.mps(); });
  v1::Finding finding = MakeFinding("cuda MPS", true, on ? "in use" : "not in use");
  if (!on && probe.mps_control()) {
    finding.set_found("a control daemon's pipe is there, but contexts do not share the device");
  }
  // Measured on an H200 (daemon/backend/README.md, "What was measured").
  finding.set_consequence(
      on ? "an illegal address in one process of a GPU ends the contexts of all processes that use "
           "it under the same MPS server, epd's worker and other ranks too"
         : "kernels of two processes on one GPU take turns, and each change from one process to "
           "the "
           "other costs about 150 us; a group with backend=cuda or nccl_ep takes them today "
           "whoever "
           "its ranks are, since an operation goes from the client to epd's worker and back (about "
           "4 changes for a dispatch, 2 for a combine)");
  finding.set_fix(
      on ? "for isolation stop MPS (echo quit | nvidia-cuda-mps-control); kernels then take turns, "
           "of about 150 us for each change of process"
         : "start MPS (nvidia-cuda-mps-control -d) only where the processes of a GPU may end "
           "together: it takes the turns away, and with them isolation, since one process's "
           "illegal address then ends the contexts of all under the same server");
  return finding;
}

v1::Finding NcclEp(const v1::CudaProbe& probe) {
  const v1::CudaProbe::Library& library = probe.nccl_ep();
  const std::string why = WhyNoNcclEp(probe);
  std::string found = library.path().empty() ? absl::StrCat("none: ", library.problem())
                                             : absl::StrCat(NcclVersionText(library.version()),
                                                            " at ", library.path());
  if (why.empty())
    return MakeFinding("NCCL EP", true, absl::StrCat(found, ", nvcc at ", probe.nvcc()));
  if (!library.path().empty()) absl::StrAppend(&found, "; ", why);
  v1::Finding finding = MakeFinding("NCCL EP", true, found);
  finding.set_consequence(
      "groups that ask for backend=nccl_ep are refused; the others need none of it");
  finding.set_fix(
      "if you want it: pip install nccl-extensions where epd's wheel is, or set EPD_LIBNCCL_EP to "
      "the path of its libnccl_ep.so or libnccl_ep.so.0 in epd's environment; with NCCL 2.30.7 or "
      "newer, but older "
      "than 2.31, on GPUs of compute capability 9.0, with nvcc on epd's PATH (or "
      "NCCL_EP_JIT_NVCC)");
  return finding;
}

v1::Finding Verdict(const v1::CudaProbe& probe) {
  const std::string why = WhyNoCuda(probe);
  v1::Finding finding =
      MakeFinding("cuda backend", true,
                  why.empty() ? "this machine has what it needs; over several nodes with NCCL"
                              : absl::StrCat("this machine cannot run it: ", why));
  finding.set_consequence(why.empty()
                              ? "groups whose ranks name their GPUs, or that ask for "
                                "backend=cuda, are served on them; others run on the cpu backend"
                              : "groups whose ranks name GPUs, and those that ask for "
                                "backend=cuda or backend=nccl_ep, are refused");
  finding.set_fix(why.empty() ? "none needed; epctl status says what is reserved"
                              : "use backend=cpu, or name no GPU");
  return finding;
}

}  // namespace

StagingWay BestStaging(const Device& device) {
  if (Works(device.virtual_memory())) return StagingWay::kVirtualMemory;
  if (Works(device.ipc_handle())) return StagingWay::kIpcHandle;
  return StagingWay::kNone;
}

std::string WhyNoCuda(const v1::CudaProbe& probe) {
  if (!probe.driver().problem().empty()) return probe.driver().problem();
  if (!Works(probe.init())) return Show(probe.init());
  std::vector<std::string> reasons;
  for (const Device& device : probe.devices()) {
    std::string why;
    if (device.compute_major() < kOldestComputeMajor) {
      why = absl::StrCat("compute capability ", device.compute_major(), ".", device.compute_minor(),
                         ", expected 8.0 or newer");
    } else if (const std::string shut_out = ShutOut(device); !shut_out.empty()) {
      why = shut_out;
    } else if (!Works(device.context())) {
      why = absl::StrCat("a context: ", Show(device.context()));
    } else if (BestStaging(device) == StagingWay::kNone) {
      why = absl::StrCat("staging: ", Show(device.ipc_handle()));
    } else if (!Works(device.kernels())) {
      why = absl::StrCat("kernels: ", Show(device.kernels()));
    } else if (!Works(device.stream_memory_operations())) {
      why = absl::StrCat("stream memory operations: ", Show(device.stream_memory_operations()));
    } else {
      return "";
    }
    reasons.push_back(absl::StrCat(Name(device), ": ", why));
  }
  return reasons.empty() ? "no device" : absl::StrJoin(reasons, "; ");
}

std::string WhyNoNcclEp(const v1::CudaProbe& probe) {
  if (const std::string why = WhyNoCuda(probe); !why.empty()) return why;
  if (!probe.nccl_ep().problem().empty()) return probe.nccl_ep().problem();
  if (probe.nccl_ep().path().empty()) return "no libnccl_ep.so or libnccl_ep.so.0 was opened";
  if (!probe.nccl().problem().empty()) return probe.nccl().problem();
  if (std::string why = WhyNotWithNcclEp(probe.nccl().version()); !why.empty()) return why;
  const bool any_new = absl::c_any_of(probe.devices(), [](const Device& device) {
    return device.compute_major() >= kNcclEpComputeMajor;
  });
  if (!any_new) return "it needs a GPU of compute capability 9.0";
  return probe.nvcc().empty() ? "it compiles its kernels with nvcc, and there is none" : "";
}

v1::GetDoctorResponse DiagnoseCuda(const v1::CudaProbe& probe, const std::string& end) {
  v1::GetDoctorResponse response;
  const auto add = [&](v1::Finding finding) { *response.add_findings() = std::move(finding); };
  if (!end.empty()) add(Probing(probe, end));
  if (!HasGpu(probe)) {
    add(MakeFinding("cuda backend", true,
                    "no NVIDIA GPU on this node; groups run on the cpu backend"));
    return response;
  }
  add(Driver(probe));
  for (const Device& device : probe.devices()) {
    add(DeviceItself(device));
    if (!device.context().done() || !Works(device.context())) continue;
    add(Staging(device));
    add(Kernels(probe, device));
    add(MemoryOperations(device));
  }
  if (probe.devices_size() > 1) add(Peers(probe));
  if (probe.devices_size() > 0) add(Mps(probe));
  add(NcclEp(probe));
  add(Verdict(probe));
  return response;
}

}  // namespace epd
