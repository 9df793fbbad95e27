#include "daemon/doctor/cuda_doctor_main.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

#include "daemon/backend/cuda/device/machine_probe.h"
#include "daemon/doctor/cuda_doctor.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

int CudaDoctorMain(const std::string& nccl_library, const std::string& self) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const cuda::ProbeResult result = cuda::ProbeInChild(self, nccl_library);
  v1::GetDoctorResponse response;
  AddFindings(DiagnoseCuda(result.probe, result.end), response);
  return response.SerializeToFileDescriptor(kDoctorFd) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace epd
