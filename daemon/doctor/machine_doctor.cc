#include "daemon/doctor/machine_doctor.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/doctor/findings.h"
#include "proto/epd/v1/backends.h"

namespace epd {
namespace {

std::string Mib(uint64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

v1::Finding Worker(const WorkerReading& worker) {
  const bool on_gpu = worker.name != kCpuWorkerName;
  const std::string what = on_gpu ? absl::StrCat("worker ", worker.name) : "worker";
  const bool running = worker.state == "RUNNING";
  std::string found = worker.state;
  if (!worker.gpu.empty()) absl::StrAppend(&found, ", ", worker.gpu);
  if (worker.num_restarts > 0) {
    absl::StrAppend(&found, "; replaced ", worker.num_restarts,
                    " times, the last one ended: ", worker.last_exit);
  }
  if (running && !worker.problem.empty()) {
    return MakeFinding(what, false, worker.problem,
                       "groups with backend=cuda are refused on this GPU",
                       "see what is said of CUDA below, or leave the GPU out of cuda_devices");
  }
  return MakeFinding(what, running, found,
                     on_gpu
                         ? "no group forms on this GPU until it is back; the others go on"
                         : "no operation of the CPU's groups runs and none forms until it is back",
                     "look for 'worker' in epd's log; check the setting `worker`");
}

v1::Finding Nccl(const DaemonReport& daemon) {
  const bool ok = !daemon.nccl_version.empty();
  return MakeFinding(
      "libnccl", ok,
      ok ? absl::StrCat(daemon.nccl_version, " at ", daemon.nccl_path) : daemon.nccl_problem,
      "groups on GPUs of several nodes, or on GPUs of a node that cannot read each other's memory, "
      "cannot form; all others work all the same",
      "install libnccl.so.2 (for example: pip install nvidia-nccl-cu12 where epd's wheel is), or "
      "set nccl_library to its path");
}

v1::Finding Certificate(const DaemonReport& daemon) {
  const std::string& problem = daemon.certificate_problem;
  return MakeFinding("certificate", problem.empty(),
                     problem.empty() ? absl::StrCat("ends on ", daemon.certificate_ends,
                                                    ", serves as ", daemon.certificate_names)
                                     : problem,
                     "after its end no node believes this one: links that break stay broken",
                     "put a new one into the files of tls_cert and tls_key, signed by tls_ca; they "
                     "are read while epd runs");
}

v1::Finding HugePages(const MachineReport& machine) {
  const std::string& text = machine.transparent_huge_pages;
  const bool ok = absl::StrContains(text, "[always]") || absl::StrContains(text, "[within_size]") ||
                  absl::StrContains(text, "[advise]") || absl::StrContains(text, "[force]");
  return MakeFinding("huge pages for shared memory", ok, text.empty() ? "unknown" : text,
                     "staging is made of 4 KiB pages: more page faults when it is first used",
                     "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

v1::Finding Memory(const MachineReport& machine, const DaemonReport& daemon) {
  const bool limited =
      machine.cgroup_limit_bytes != 0 && machine.cgroup_limit_bytes < machine.memory_bytes;
  const uint64_t limit = limited ? machine.cgroup_limit_bytes : machine.memory_bytes;
  std::string found = absl::StrCat("staging_bytes ", Mib(daemon.staging_bytes), " of ", Mib(limit),
                                   limited ? " (" : " (of the machine");
  if (limited)
    absl::StrAppend(&found, machine.cgroup_file, ", ", Mib(machine.cgroup_used_bytes), " used");
  found += ")";
  if (!machine.least_room_file.empty()) {
    absl::StrAppend(&found, "; at present ", Mib(machine.least_room_bytes), " are left by ",
                    machine.least_room_file);
  }
  return MakeFinding(
      "memory limit", daemon.staging_bytes <= limit / 2, found,
      "a full pool can get clients or epd killed for memory",
      "set staging_bytes to at most half of the limit, or raise the limit (MemoryMax=)");
}

v1::Finding Cores(const MachineReport& machine, const DaemonReport& daemon) {
  return MakeFinding(
      "cores", daemon.num_sessions <= machine.num_cores,
      absl::StrCat(machine.num_cores, " cores, ", daemon.num_sessions, " sessions"),
      "clients take turns on the cores; operations take longer, spinning makes it worse",
      "run fewer processes per node, or set spin=0s");
}

v1::Finding Descriptors(const MachineReport& machine) {
  const bool ok = machine.descriptors_used + 1024 <= machine.descriptors_limit;
  return MakeFinding(
      "open files", ok,
      absl::StrCat(machine.descriptors_used, " of ", machine.descriptors_limit, " in use"),
      "new clients are refused when they run out (4 per session, 2 per arena)",
      "raise the hard limit: LimitNOFILE=65536, or ulimit -Hn");
}

// Network cards and GPUs pin the memory that they read, which counts against this limit.
v1::Finding Locked(const MachineReport& machine, const DaemonReport& daemon) {
  const bool none = machine.locked_limit_bytes == UINT64_MAX;
  const bool has_gpu = daemon.workers.size() > 1;
  const std::string found = none ? "no limit" : Mib(machine.locked_limit_bytes);
  return MakeFinding(
      "locked memory", !has_gpu || none || machine.locked_limit_bytes >= daemon.staging_bytes,
      has_gpu ? absl::StrCat(found, ", staging_bytes ", Mib(daemon.staging_bytes))
              : absl::StrCat(found, "; only GPUs and their network cards need it"),
      "NCCL and network cards cannot pin staging: communicators fail, or fall back to slow copies",
      "LimitMEMLOCK=infinity in the unit, 'ulimit -l unlimited', or docker run --ulimit "
      "memlock=-1");
}

// Staging is memfds, which are no part of this file system; NCCL and gloo put their own buffers there.
constexpr uint64_t kLeastShmBytes = uint64_t{1} << 30;

v1::Finding Shm(const MachineReport& machine, const DaemonReport& daemon) {
  return MakeFinding(
      "/dev/shm", machine.shm_bytes >= kLeastShmBytes,
      machine.shm_bytes == 0
          ? "there is none"
          : absl::StrCat(Mib(machine.shm_bytes), "; the ", Mib(daemon.staging_bytes),
                         " of staging_bytes are memfds and count against memory alone"),
      "NCCL and gloo between processes of this node fail, often with no word of why",
      "docker run --shm-size=1g (Kubernetes: an emptyDir of medium Memory at /dev/shm), or mount "
      "-o "
      "remount,size=1g /dev/shm");
}

v1::Finding Folder(const MachineReport& machine) {
  const bool writable_by_all =
      (machine.socket_folder_mode & 0002) != 0 && (machine.socket_folder_mode & 01000) == 0;
  const bool full = machine.socket_folder_free_bytes < (1 << 20);
  return MakeFinding(
      "runtime folder", !writable_by_all && !full,
      absl::StrFormat("%s, mode %04o, %s free", machine.socket_folder, machine.socket_folder_mode,
                      Mib(machine.socket_folder_free_bytes)),
      writable_by_all ? "another user can put a socket in epd's place"
                      : "locks and logs cannot be written",
      writable_by_all ? absl::StrCat("chmod o-w ", machine.socket_folder) : "free space there");
}

}  // namespace

v1::GetDoctorResponse Diagnose(const MachineReport& machine, const DaemonReport& daemon) {
  v1::GetDoctorResponse response;
  for (const WorkerReading& worker : daemon.workers) *response.add_findings() = Worker(worker);
  if (!daemon.certificate_ends.empty()) *response.add_findings() = Certificate(daemon);
  for (v1::Finding& finding : std::vector{
           Nccl(daemon), HugePages(machine), Memory(machine, daemon), Cores(machine, daemon),
           Descriptors(machine), Locked(machine, daemon), Shm(machine, daemon), Folder(machine)}) {
    *response.add_findings() = std::move(finding);
  }
  return response;
}

}  // namespace epd
