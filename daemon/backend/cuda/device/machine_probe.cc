#include "daemon/backend/cuda/device/machine_probe.h"

#include <dirent.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/backend/child_output.h"
#include "daemon/backend/cuda/device/device_probe.h"
#include "daemon/backend/cuda/members/nccl_table.h"
#include "daemon/backend/nccl_ep/nccl_ep_library.h"
#include "daemon/backend/nccl_library.h"
#include "daemon/core/unique_fd.h"
#include "kernels/cuda/device_image.h"
#include "kernels/cuda/driver/driver_table.h"

namespace epd::cuda {
namespace {

bool Exists(const std::string& path) {
  struct stat entry;
  return stat(path.c_str(), &entry) == 0;
}

std::string FirstWord(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// A display or 3D controller of NVIDIA on the PCI bus, whether or not a driver runs it.
bool HasGpuOnThePciBus() {
  const std::string root = "/sys/bus/pci/devices";
  DIR* folder = opendir(root.c_str());
  if (folder == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(folder)) {
    const std::string device = absl::StrCat(root, "/", entry->d_name);
    found = found || (FirstWord(device + "/vendor") == "0x10de" &&
                      FirstWord(device + "/class").substr(0, 4) == "0x03");
  }
  closedir(folder);
  return found;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...": the first word that is a version.
std::string KernelDriver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (word.find('.') != absl::string_view::npos &&
        word.find_first_not_of("0123456789.") == absl::string_view::npos) {
      return std::string(word);
    }
  }
  return "";
}

bool HasMpsControl() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return Exists(absl::StrCat(folder == nullptr ? "/tmp/nvidia-mps" : folder, "/control"));
}

// The path under which this process has mapped the file that was opened as `path`: what is loaded, not
// what was asked for.
std::string MappedPath(const std::string& path) {
  struct stat wanted;
  if (path.empty() || stat(path.c_str(), &wanted) != 0) return path;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.find('/');
    struct stat mapped;
    if (slash == std::string::npos || stat(line.c_str() + slash, &mapped) != 0) continue;
    if (mapped.st_ino == wanted.st_ino && mapped.st_dev == wanted.st_dev) {
      return line.substr(slash);
    }
  }
  return path;
}

void Write(int fd, const v1::CudaProbe& probe) {
  std::ostringstream text;
  google::protobuf::util::SerializeDelimitedToOstream(probe, &text);
  const std::string bytes = text.str();
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = write(fd, bytes.data() + done, bytes.size() - done);
    if (wrote <= 0) return;
    done += static_cast<size_t>(wrote);
  }
}

v1::CudaProbe LastOf(const std::string& output) {
  google::protobuf::io::ArrayInputStream stream(output.data(), static_cast<int>(output.size()));
  v1::CudaProbe last;
  v1::CudaProbe next;
  bool clean_end = false;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&next, &stream, &clean_end)) {
    last.Swap(&next);
    next.Clear();
  }
  return last;
}

void ProbeDriver(const DeviceTrials& trials, v1::CudaProbe& probe, const Progress& progress) {
  probe.set_step("libcuda.so.1");
  progress(probe);
  const LoadedDriver driver = LoadDriver();
  probe.mutable_driver()->set_path(MappedPath(driver.path));
  probe.mutable_driver()->set_problem(driver.problem);
  for (const std::string& call : driver.missing) probe.add_missing_calls(call);
  if (!driver.ok()) return;
  int version = 0;
  if (driver.table.driver_get_version(&version) == kSuccess) {
    probe.mutable_driver()->set_version(version);
  }
  ProbeDevices(driver.table, trials, probe, progress);
}

void ProbeNccl(const std::vector<std::string>& candidates, v1::CudaProbe& probe,
               const Progress& progress) {
  probe.set_step("libnccl");
  progress(probe);
  LoadedNccl nccl;
  for (const std::string& path : candidates) {
    nccl = LoadNccl(path);
    if (nccl.ok()) break;
  }
  probe.mutable_nccl()->set_path(MappedPath(nccl.path));
  probe.mutable_nccl()->set_version(nccl.version);
  probe.mutable_nccl()->set_problem(nccl.problem);
}

void ProbeNcclEp(const std::string& self, v1::CudaProbe& probe, const Progress& progress) {
  probe.set_step("libnccl_ep");
  progress(probe);
  const NcclEpLibrary library = OpenNcclEp(NcclEpCandidates(self));
  probe.mutable_nccl_ep()->set_path(MappedPath(library.path));
  probe.mutable_nccl_ep()->set_version(library.version);
  probe.mutable_nccl_ep()->set_problem(library.problem);
}

}  // namespace

int ProbeChildMain(const std::string& nccl_library, const std::string& self) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const UniqueFd out(dup(STDOUT_FILENO));
  dup2(STDERR_FILENO, STDOUT_FILENO);  // Libraries print there.
  const Progress progress = [&out](const v1::CudaProbe& probe) { Write(out.get(), probe); };
  v1::CudaProbe probe;
  probe.set_gpu_hardware(HasGpuOnThePciBus() || Exists("/dev/nvidiactl") || Exists("/dev/dxg"));
  probe.set_kernel_driver(KernelDriver());
  probe.set_mps_control(HasMpsControl());
  probe.set_nvcc(FindNvcc());
  probe.set_kernels_driver(KernelImage().oldest_driver);
  DeviceTrials trials = {.only = {}, .image = KernelImage().data};
  absl::string_view ordinal = nccl_library;
  if (int number = 0;
      absl::ConsumePrefix(&ordinal, kOneDevice) && absl::SimpleAtoi(ordinal, &number)) {
    trials.only = number;
  }
  ProbeDriver(trials, probe, progress);
  if (!trials.only.has_value()) {
    ProbeNccl(NcclCandidates(nccl_library, self), probe, progress);
    ProbeNcclEp(self, probe, progress);  // Last: the likeliest to end this process.
  }
  probe.clear_step();
  progress(probe);
  // Without the libraries' destructors, which may hang after a failed trial.
  _exit(EXIT_SUCCESS);
}

ProbeResult ProbeInChild(const std::string& program, const std::string& nccl_library,
                         absl::Duration limit) {
  ProbeResult result;
  const absl::StatusOr<ChildOutput> child = RunChild(program, {kProbeFlag + nccl_library}, limit);
  if (!child.ok()) {
    result.end = std::string(child.status().message());
    return result;
  }
  result.probe = LastOf(child->output);
  result.end = child->end;
  return result;
}

}  // namespace epd::cuda
