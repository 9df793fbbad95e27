#include "daemon/doctor/cuda_doctor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/nccl_version.h"

namespace epd {
namespace {

using Device = v1::CudaProbe::Device;
using Trial = v1::CudaProbe::Trial;

constexpr int kOldestComputeMajor = 8;
constexpr int kNcclEpComputeMajor = 9;
constexpr int kNcclEpNccl = 23004;

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

bool HasGpu(const v1::CudaProbe& probe) {
  return probe.gpu_hardware() || probe.devices_size() > 0 || !probe.kernel_driver().empty();
}

DoctorFinding Finding(std::string what, bool ok, std::string found, std::string consequence,
                      std::string fix) {
  if (ok) return {std::move(what), true, std::move(found), "", ""};
  return {std::move(what), false, std::move(found), std::move(consequence), std::move(fix)};
}

DoctorFinding Probing(const v1::CudaProbe& probe, const std::string& end) {
  return Finding("cuda probe", false,
                 absl::StrCat("the process that looks for CUDA ", end,
                              probe.step().empty() ? "" : absl::StrCat(" at ", probe.step())),
                 "what comes after that step is unknown; epd itself is not touched",
                 "run 'epd-worker --probe-cuda=' by hand to see what the library prints, and "
                 "replace or remove that library");
}

DoctorFinding Driver(const v1::CudaProbe& probe) {
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
  return Finding("cuda driver", ok, found, kNoCuda, kInstallDriver);
}

DoctorFinding DeviceItself(const Device& device) {
  const bool new_enough = device.compute_major() >= kOldestComputeMajor;
  const bool opens = Works(device.context());
  std::string found =
      absl::StrCat(device.name(), ", compute capability ", device.compute_major(), ".",
                   device.compute_minor(), ", ", device.multiprocessors(), " SMs, ",
                   device.free_bytes() >> 20, " of ", device.total_bytes() >> 20, " MiB free");
  if (!opens) absl::StrAppend(&found, "; a context: ", Show(device.context()));
  return Finding(Name(device), new_enough && opens, found,
                 absl::StrCat("the cuda backend cannot use ", Name(device)),
                 new_enough
                     ? "free the device, or set its compute mode to default (nvidia-smi -c 0)"
                     : "use a GPU of compute capability 8.0 or newer");
}

DoctorFinding Staging(const Device& device) {
  const StagingWay way = BestStaging(device);
  const std::string found =
      absl::StrCat("virtual memory by descriptor: ", Show(device.virtual_memory()),
                   "; IPC handles: ", Show(device.ipc_handle()));
  DoctorFinding finding =
      Finding(absl::StrCat(Name(device), " staging"), way != StagingWay::kNone, found,
              "clients cannot map this device's staging, so the cuda backend cannot use it",
              "use a driver, container or virtual GPU that offers one of the two");
  if (way == StagingWay::kIpcHandle) {
    finding.consequence = "staging is shared by IPC handles, which die with their worker";
    finding.fix = "use a driver that exports virtual memory (not WSL2, not every virtual GPU)";
  }
  return finding;
}

DoctorFinding MemoryOperations(const Device& device) {
  return Finding(absl::StrCat(Name(device), " stream memory operations"),
                 Works(device.stream_memory_operations()), Show(device.stream_memory_operations()),
                 "a stream cannot wait for epd, so the cuda backend cannot use this device",
                 "use driver 525 or newer on Linux; virtual GPUs and WSL2 may not offer them");
}

DoctorFinding Peers(const v1::CudaProbe& probe) {
  std::vector<std::string> without;
  for (const Device& device : probe.devices()) {
    for (const int peer : device.no_access_to()) {
      without.push_back(absl::StrCat(device.ordinal(), "->", peer));
    }
  }
  return Finding("cuda peer access", without.empty(),
                 without.empty()
                     ? absl::StrCat("between all ", probe.devices_size(), " devices")
                     : absl::StrCat("none from device to device: ", absl::StrJoin(without, ", ")),
                 "rows between those devices go through NCCL, not straight over NVLink or PCIe",
                 "see 'nvidia-smi topo -p2p r'; switch off ACS and IOMMU translation between them");
}

DoctorFinding Mps(const v1::CudaProbe& probe) {
  const bool on = std::any_of(probe.devices().begin(), probe.devices().end(),
                              [](const Device& device) { return device.mps(); });
  DoctorFinding finding{"cuda MPS", true, on ? "in use" : "not in use", "", ""};
  if (!on && probe.mps_control()) {
    finding.found = "a control daemon's pipe is there, but contexts do not share the device";
  }
  finding.consequence =
      on ? "a fault in one process of a GPU ends all processes on it"
         : "epd's kernels and those of its clients take turns on a GPU and never overlap";
  finding.fix = on ? "none needed; stop MPS (echo quit | nvidia-cuda-mps-control) for isolation"
                   : "none needed; start MPS (nvidia-cuda-mps-control -d) for overlap";
  return finding;
}

DoctorFinding NcclEp(const v1::CudaProbe& probe) {
  const v1::CudaProbe::Library& library = probe.nccl_ep();
  const std::string why = WhyNoNcclEp(probe);
  DoctorFinding finding{"NCCL EP", true, "", "", ""};
  finding.found = library.path().empty()
                      ? absl::StrCat("none: ", library.problem())
                      : absl::StrCat(NcclVersionText(library.version()), " at ", library.path());
  if (why.empty()) {
    absl::StrAppend(&finding.found, ", nvcc at ", probe.nvcc());
    return finding;
  }
  if (!library.path().empty()) absl::StrAppend(&finding.found, "; ", why);
  finding.consequence =
      "groups that ask for backend=nccl_ep are refused; the others need none of it";
  finding.fix =
      "if you want it: pip install nccl-extensions with NCCL 2.30.4 or newer, on GPUs of compute "
      "capability 9.0, with nvcc on epd's PATH (or NCCL_EP_JIT_NVCC)";
  return finding;
}

DoctorFinding Verdict(const v1::CudaProbe& probe) {
  const std::string why = WhyNoCuda(probe);
  DoctorFinding finding{"cuda backend", true, "", "", ""};
  finding.found = why.empty() ? "this machine has what it needs; over several nodes with NCCL"
                              : absl::StrCat("this machine cannot run it: ", why);
  finding.consequence = why.empty() ? "groups that ask for backend=cuda are served, those with "
                                      "backend=auto run on the cpu backend"
                                    : "backend=auto runs on the cpu backend; backend=cuda and "
                                      "backend=nccl_ep are refused";
  finding.fix = why.empty() ? "none needed; epctl status says what is reserved"
                            : "use backend=auto or backend=cpu";
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
    } else if (!Works(device.context())) {
      why = absl::StrCat("a context: ", Show(device.context()));
    } else if (BestStaging(device) == StagingWay::kNone) {
      why = absl::StrCat("staging: ", Show(device.ipc_handle()));
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
  if (probe.nccl_ep().path().empty()) return "no libnccl_ep.so was opened";
  if (!probe.nccl().problem().empty()) return probe.nccl().problem();
  if (probe.nccl().version() < kNcclEpNccl) {
    return absl::StrCat("it needs NCCL 2.30.4, and there is ",
                        NcclVersionText(probe.nccl().version()));
  }
  const bool any_new = std::any_of(
      probe.devices().begin(), probe.devices().end(),
      [](const Device& device) { return device.compute_major() >= kNcclEpComputeMajor; });
  if (!any_new) return "it needs a GPU of compute capability 9.0";
  return probe.nvcc().empty() ? "it compiles its kernels with nvcc, and there is none" : "";
}

std::vector<DoctorFinding> DiagnoseCuda(const v1::CudaProbe& probe, const std::string& end) {
  std::vector<DoctorFinding> findings;
  if (!end.empty()) findings.push_back(Probing(probe, end));
  if (!HasGpu(probe)) {
    findings.push_back(
        {"cuda backend", true, "no NVIDIA GPU on this node; backend=auto is cpu", "", ""});
    return findings;
  }
  findings.push_back(Driver(probe));
  for (const Device& device : probe.devices()) {
    findings.push_back(DeviceItself(device));
    if (!device.context().done() || !Works(device.context())) continue;
    findings.push_back(Staging(device));
    findings.push_back(MemoryOperations(device));
  }
  if (probe.devices_size() > 1) findings.push_back(Peers(probe));
  if (probe.devices_size() > 0) findings.push_back(Mps(probe));
  findings.push_back(NcclEp(probe));
  findings.push_back(Verdict(probe));
  return findings;
}

}  // namespace epd
