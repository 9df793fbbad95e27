// A mode of the worker's program: looks for CUDA and says what it means, for epd and for epctl.
#pragma once

#include <string>

namespace epd {

inline constexpr char kDoctorFlag[] = "--doctor-cuda=";

// Probes this machine in a child of `self`, opens no library in this process, and takes at most half a
// minute. `nccl_library` is the setting of that name. Returns the exit status.
int CudaDoctorMain(const std::string& nccl_library, const std::string& self);

}  // namespace epd
