#include "daemon/core/worker_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/epd/v1/backends.h"

namespace epd {

std::string ToString(const WorkerName& name) {
  return name.on_gpu() ? absl::StrCat("cuda:", name.cuda_device) : kCpuWorkerName;
}

std::optional<WorkerName> ParseWorkerName(absl::string_view text) {
  if (text == kCpuWorkerName) return kCpuWorker;
  int32_t device;
  if (!absl::ConsumePrefix(&text, "cuda:") || !absl::SimpleAtoi(text, &device) || device < 0 ||
      device > kMaxCudaDevice) {
    return std::nullopt;
  }
  return WorkerName{device};
}

}  // namespace epd
