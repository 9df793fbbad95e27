// epd-worker: runs the operations of one device of the node. Started by epd, never by hand.
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/strip.h"
#include "daemon/backend/cpu/cpu_backend.h"
#include "daemon/backend/cuda/machine_probe.h"
#include "daemon/backend/unique_id_child.h"
#include "daemon/worker/cuda_doctor_main.h"
#include "daemon/worker/worker_main.h"

int main(int argc, char** argv) {
  absl::string_view argument = argc == 2 ? argv[1] : "";
  if (absl::ConsumePrefix(&argument, epd::kUniqueIdFlag)) {
    return epd::UniqueIdChildMain(std::string(argument));
  }
  if (absl::ConsumePrefix(&argument, epd::cuda::kProbeFlag)) {
    return epd::cuda::ProbeChildMain(std::string(argument), epd::SelfPath());
  }
  if (absl::ConsumePrefix(&argument, epd::kDoctorFlag)) {
    return epd::CudaDoctorMain(std::string(argument), epd::SelfPath());
  }
  return epd::WorkerMain(
      argument,
      [](const epd::v1::WorkerHello& hello) -> absl::StatusOr<std::unique_ptr<epd::Backend>> {
        return epd::CpuBackend::Create(hello.simd());
      });
}
