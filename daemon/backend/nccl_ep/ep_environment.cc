#include "daemon/backend/nccl_ep/ep_environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/backend/cuda/device/machine_probe.h"
#include "daemon/backend/nccl_ep/nccl_ep_library.h"
#include "daemon/core/nccl_version.h"

namespace epd::nccl_ep {
namespace {

absl::Status Missing(const std::string& what, const std::string& fix) {
  return absl::FailedPreconditionError(
      absl::StrCat("backend=nccl_ep cannot be served here: ", what, "; ", fix,
                   ", or ask for backend=cuda (epctl doctor says what this machine has)"));
}

absl::Status CheckProbe(const cuda::ProbeResult& result, int ordinal) {
  constexpr char kInstall[] = "install the wheel nccl-extensions";
  const v1::CudaProbe& probe = result.probe;
  if (!result.end.empty()) {
    return Missing(absl::StrCat("asking for the library's version, a process ", result.end, " in ",
                                probe.step()),
                   absl::StrCat("see its log, or ", kInstall, " anew"));
  }
  if (!probe.nccl_ep().problem().empty()) return Missing(probe.nccl_ep().problem(), kInstall);
  if (probe.nccl_ep().path().empty())
    return Missing("there is no libnccl_ep.so or libnccl_ep.so.0", kInstall);
  if (const std::string why = WhyNotWithNcclEp(probe.nccl().version()); !why.empty()) {
    return Missing(why, "install such a one, or name it in the setting nccl_library");
  }
  if (ordinal < probe.devices_size() &&
      probe.devices(ordinal).compute_major() < kNcclEpNeedsComputeMajor) {
    const auto& device = probe.devices(ordinal);
    return Missing(absl::StrCat("NCCL EP needs compute capability ", kNcclEpNeedsComputeMajor,
                                ".0, and device ", ordinal, " has ", device.compute_major(), ".",
                                device.compute_minor()),
                   "use a newer GPU");
  }
  return absl::OkStatus();
}

std::string Parent(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

bool IsFolder(const std::string& path) {
  struct stat entry;
  return stat(path.c_str(), &entry) == 0 && S_ISDIR(entry.st_mode);
}

void SetUnlessSet(const char* name, const std::string& value) {
  setenv(name, value.c_str(), /*overwrite=*/0);
}

// What the library was built with names folders of the machine that built it.
void TellPlaces(const std::string& library, const std::string& nccl, const std::string& nvcc,
                const std::string& cache) {
  SetUnlessSet("NCCL_EP_JIT_NVCC", nvcc);
  SetUnlessSet("NCCL_EP_JIT_CACHE_DIR", cache);
  // In a wheel libraries are in a folder for each CUDA; elsewhere beside include.
  for (const std::string& place : {Parent(Parent(library)), Parent(Parent(Parent(library)))}) {
    const std::string sources = place + "/include/nccl_ep";
    if (IsFolder(sources) && std::getenv("NCCL_EP_HOME") == nullptr) {
      SetUnlessSet("NCCL_EP_JIT_SOURCE_DIR", sources);
    }
  }
  const std::string headers = Parent(Parent(nccl)) + "/include";
  if (IsFolder(headers) && std::getenv("NCCL_HOME") == nullptr) {
    SetUnlessSet("NCCL_EP_JIT_BUILD_INCLUDE_DIR", headers);
  }
}

// Why this user makes nothing in `folder`, which a variable names; "": it may. One that is missing may be made in the one above.
std::string WhyNotBelow(const std::string& folder) {
  if (folder[0] != '/') return " is no absolute path";
  struct stat entry;
  if (stat(folder.c_str(), &entry) != 0 && stat(Parent(folder).c_str(), &entry) != 0)
    return absl::StrCat(" is not there: ", std::strerror(errno));
  if (entry.st_uid == geteuid() || entry.st_uid == 0) return "";
  return absl::StrCat(" is a folder of uid ", entry.st_uid,
                      ", who could not use or remove what uid ", geteuid(), " makes there");
}

bool MakePrivateFolder(const std::string& path, std::string& problem) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    problem = absl::StrCat(path, ": ", std::strerror(errno));
    return false;
  }
  struct stat entry;
  if (lstat(path.c_str(), &entry) != 0 || !S_ISDIR(entry.st_mode) || entry.st_uid != geteuid() ||
      (entry.st_mode & 022) != 0) {
    problem = absl::StrCat(path, " is no folder that only this user can write to");
    return false;
  }
  return true;
}

}  // namespace

std::string CacheFolder(std::string& problem) {
  std::string base = absl::StrCat("/tmp/epd-cache-", geteuid());
  for (const char* name : {"XDG_CACHE_HOME", "HOME"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    problem = WhyNotBelow(value);
    if (!problem.empty()) {
      problem = absl::StrCat(name, "=", value, problem);
      return "";
    }
    base = absl::StrCat(value, absl::string_view(name) == "HOME" ? "/.cache" : "");
    break;
  }
  mkdir(base.c_str(), 0700);  // Says nothing that the next one does not.
  for (const char* part : {"/epd", "/nccl_ep"}) {
    base += part;
    if (!MakePrivateFolder(base, problem)) return "";
  }
  return base;
}

absl::StatusOr<const Table*> OpenLibrary(const std::string& program, const std::string& nccl_path,
                                         int ordinal) {
  static const Loaded* opened =
      nullptr;  // Of the one thread of a worker that comes here at a time.
  if (opened != nullptr) return &opened->table;
  const std::string nvcc = FindNvcc();
  if (nvcc.empty()) {
    return Missing("JIT unavailable: it compiles its kernels at run time and there is no nvcc",
                   "put nvcc on epd's PATH or name it in NCCL_EP_JIT_NVCC");
  }
  const cuda::ProbeResult result = cuda::ProbeInChild(program, nccl_path);
  if (absl::Status checked = CheckProbe(result, ordinal); !checked.ok()) return checked;
  std::string problem;
  const std::string cache = CacheFolder(problem);
  if (cache.empty() && std::getenv("NCCL_EP_JIT_CACHE_DIR") == nullptr) {
    return Missing(absl::StrCat("JIT unavailable: no folder for what it compiles: ", problem),
                   "name one in NCCL_EP_JIT_CACHE_DIR");
  }
  TellPlaces(result.probe.nccl_ep().path(), nccl_path, nvcc, cache);
  Loaded loaded = Load(NcclEpCandidates(program));
  if (!loaded.ok()) return Missing(loaded.problem, "install the wheel nccl-extensions anew");
  opened = new Loaded(std::move(loaded));
  return &opened->table;
}

}  // namespace epd::nccl_ep
