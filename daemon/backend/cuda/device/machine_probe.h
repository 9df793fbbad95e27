// What there is of CUDA, NCCL and NCCL EP on this machine, found out in a child process: libraries that
// end their process, or hang, take nothing else with them.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "proto/epd/v1/cuda_probe.pb.h"

namespace epd::cuda {

inline constexpr char kProbeFlag[] = "--probe-cuda=";
// A driver that nothing keeps loaded starts all GPUs of the machine in the first cuInit, which takes seconds for each.
inline constexpr absl::Duration kProbeLimit = absl::Seconds(30);
// Instead of NCCL's library, with an ordinal behind it: look at the driver and this device only.
inline constexpr char kOneDevice[] = "device:";
inline constexpr int kNoDeviceAtAll = -1;  // In place of the ordinal: only say which there are.

struct ProbeResult {
  v1::CudaProbe probe;  // The last that was said.
  // How the child ended, if not well: "killed by signal 6 (Aborted)", "did not end within 30s".
  std::string end;
};

// Runs `program --probe-cuda=NCCL_LIBRARY` (a path, or "" for the usual places) and takes what it says. Blocks up to `limit`; the child is
// reaped on return.
ProbeResult ProbeInChild(const std::string& program, const std::string& nccl_library,
                         absl::Duration limit = kProbeLimit);

// What the child runs: writes its findings to standard output. `self`: its own path. Returns the exit
// status.
int ProbeChildMain(const std::string& nccl_library, const std::string& self);

}  // namespace epd::cuda
