// Which of a node's epd-workers: one serves the groups of the CPU, one those of each GPU.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace epd {

inline constexpr int32_t kMaxCudaDevice = 255;

struct WorkerName {
  int32_t cuda_device = -1;  // Ordinal; -1: the CPU's worker.

  bool on_gpu() const { return cuda_device >= 0; }
  friend auto operator<=>(const WorkerName&, const WorkerName&) = default;
};

inline constexpr WorkerName kCpuWorker;

// "cpu", "cuda:0": the form that settings, logs and messages use.
std::string ToString(const WorkerName& name);

// The other way round; nothing when it is no such name.
std::optional<WorkerName> ParseWorkerName(absl::string_view text);

}  // namespace epd
