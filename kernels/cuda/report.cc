#include "kernels/cuda/report.h"

namespace epd::cuda {

KernelError ReadReport(ReportWord word) {
  KernelError error;
  if (word == kNoReport) return error;
  error.fault = static_cast<KernelFault>(word & 0xff);
  error.index = static_cast<std::int64_t>(word >> 8);
  // Faults stand in the order of their causes: arguments, then counts, then plan and stages.
  if (error.fault == KernelFault::kPlanEpoch) {
    error.code = Code::kAborted;
  } else if (error.fault < KernelFault::kPlanMagic) {
    error.code = Code::kInvalidArgument;
  } else {
    error.code = Code::kDataLoss;
  }
  return error;
}

}  // namespace epd::cuda
