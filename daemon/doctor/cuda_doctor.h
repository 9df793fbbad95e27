// What an operator should know about this machine's GPUs, from what a probe of them said.
#pragma once

#include <string>

#include "proto/epd/v1/cuda_probe.pb.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Which way the CUDA backend would share a device's staging with clients.
enum class StagingWay { kNone, kVirtualMemory, kIpcHandle };
StagingWay BestStaging(const v1::CudaProbe::Device& device);

// Why the CUDA backend cannot run on this machine; "": it could.
std::string WhyNoCuda(const v1::CudaProbe& probe);
// The same of NCCL EP, which needs all that and more.
std::string WhyNoNcclEp(const v1::CudaProbe& probe);

// Pure: all findings, good ones too, in a fixed order; a machine without a GPU has one, and it is good.
// `end`: how the probing process ended, if not well. What is merely optional is good when it is
// absent, and says all the same what that means and what to do.
v1::GetDoctorResponse DiagnoseCuda(const v1::CudaProbe& probe, const std::string& end);

}  // namespace epd
