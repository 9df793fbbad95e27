// NCCL EP, found and opened at run time. It ends its process on most errors, so whoever calls into it
// must be able to die: a worker, or a child made for the purpose.
#pragma once

#include <string>
#include <vector>

namespace epd {

// The ABI that epd is written for is number 2, whose structs only grow at their end. Release 0.2.0 has it, and so have builds
// of its source that say 0.1.0, as those of ABI 1 do: of these only the header that they install tells which they are.
inline constexpr int kNcclEpAbi = 2;
inline constexpr int kNcclEpOldest = 200;
inline constexpr int kNcclEpOldestByHeader = 100;
inline constexpr int kNcclEpTooNew = 10000;  // 1.0.0: another soname.
// Its kernels ask for SM90; for which NCCL: nccl_version.h.
inline constexpr int kNcclEpNeedsComputeMajor = 9;

// Where to look for libnccl_ep.so or libnccl_ep.so.0, in order: EPD_LIBNCCL_EP alone if the environment has it; else the
// loader's own places, then the Python environment that the binary at `self` is installed in (wheel_files.h): nccl/ep/lib/cu1*
// of its packages, the newest CUDA first, then nccl/ep/lib.
std::vector<std::string> NcclEpCandidates(const std::string& self);

struct NcclEpLibrary {
  std::string path;     // Of the file that was opened; "": none.
  int version = 0;      // 10000 * major + 100 * minor + patch; 0: it did not say.
  std::string problem;  // Why it cannot be used; "": it can, as far as its version tells.
};

// The ABI's number in the nccl_ep.h that was installed with the library at `path`: in the folder include beside its own
// folder, or one above (a wheel's libraries are in a folder for each CUDA). 0: there is none.
int NcclEpHeaderAbi(const std::string& path);

// Takes the first candidate that opens, and asks it for its version. May end the process.
NcclEpLibrary OpenNcclEp(const std::vector<std::string>& candidates);

// Where the nvcc is that NCCL EP compiles its kernels with at run time: NCCL_EP_JIT_NVCC, NVCC,
// CUDA_HOME/bin, PATH, in this order. "" when none of them is a program.
std::string FindNvcc();

}  // namespace epd
