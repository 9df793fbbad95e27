#include "daemon/doctor/cuda_doctor_main.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

#include "daemon/backend/cuda/device/machine_probe.h"
#include "daemon/doctor/cuda_doctor.h"
#include "daemon/doctor/findings.h"

namespace epd {
namespace {

// Whoever asks waits for 30 s.
constexpr absl::Duration kLimit = absl::Seconds(27);

}  // namespace

int CudaDoctorMain(const std::string& nccl_library, const std::string& self) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const cuda::ProbeResult result = cuda::ProbeInChild(self, nccl_library, kLimit);
  const v1::GetDoctorResponse response = DiagnoseCuda(result.probe, result.end);
  return response.SerializeToFileDescriptor(kDoctorFd) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace epd
