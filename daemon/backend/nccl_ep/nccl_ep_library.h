// NCCL EP, found and opened at run time. It ends its process on most errors, so whoever calls into it
// must be able to die: a worker, or a child made for the purpose.
#pragma once

#include <string>
#include <vector>

namespace epd {

// The ABI that epd is written for: 0.2.0, whose structs only grow at their end. The wheel that has it is nccl-extensions 0.1.0.
inline constexpr int kNcclEpOldest = 200;
// Its kernels ask for NCCL's device API as of 2.30.4 and for SM90.
inline constexpr int kNcclEpNeedsNccl = 23004;
inline constexpr int kNcclEpNeedsComputeMajor = 9;

// Where to look for libnccl_ep.so, in order: EPD_LIBNCCL_EP alone if the environment has it; else the loader's own
// places, then the Python environment that the binary at `self` is installed in (wheel_files.h): nccl/ep/lib/cu1* of
// its packages, the newest CUDA first.
std::vector<std::string> NcclEpCandidates(const std::string& self);

struct NcclEpLibrary {
  std::string path;     // Of the file that was opened; "": none.
  int version = 0;      // 10000 * major + 100 * minor + patch; 0: it did not say.
  std::string problem;  // Why it cannot be used; "": it can, as far as its version tells.
};

// Takes the first candidate that opens, and asks it for its version. May end the process.
NcclEpLibrary OpenNcclEp(const std::vector<std::string>& candidates);

// Where the nvcc is that NCCL EP compiles its kernels with at run time: NCCL_EP_JIT_NVCC, NVCC,
// CUDA_HOME/bin, PATH, in this order. "" when none of them is a program.
std::string FindNvcc();

}  // namespace epd
