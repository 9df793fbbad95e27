#include "daemon/control/worker_choice.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace epd {
namespace {

constexpr WorkerName kFirstGpu{0};
constexpr absl::string_view kUuidPrefix = "GPU-";

// The first of the ids that begin as `device` does; what is no GPU's name may be the CPU's.
std::optional<WorkerName> Named(const std::string& device, const ServedGpus& gpus) {
  absl::string_view rest = device;
  if (!absl::ConsumePrefix(&rest, kUuidPrefix)) return ParseWorkerName(device);
  const std::string digits = absl::StrReplaceAll(absl::AsciiStrToLower(rest), {{"-", ""}});
  for (const auto& [name, uuid] : gpus.uuids) {
    if (!digits.empty() && absl::StartsWith(uuid, digits)) return name;
  }
  return std::nullopt;
}

std::string List(const std::set<WorkerName>& workers) {
  return absl::StrJoin(workers, ", ", [](std::string* out, const WorkerName& name) {
    absl::StrAppend(out, ToString(name));
  });
}

// The worker of the GPU that `device` names; nothing when it names none.
absl::StatusOr<std::optional<WorkerName>> WorkerOf(const std::string& device,
                                                   const ServedGpus& gpus) {
  const std::optional<WorkerName> named = Named(device, gpus);
  if (!named.has_value() && absl::StartsWith(device, kUuidPrefix)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a rank is on ", absl::CHexEscape(device),
        ", and no worker of this node that runs has that GPU; list it in the setting cuda_devices, "
        "or name GPUs by number in CUDA_VISIBLE_DEVICES"));
  }
  if (!named.has_value() || !named->on_gpu()) return std::nullopt;
  if (gpus.others || gpus.workers.count(*named) > 0) return named;
  return absl::FailedPreconditionError(
      absl::StrCat("a rank is on ", ToString(*named), ", which epd does not serve, only ",
                   List(gpus.workers), "; add it to the setting cuda_devices, or use another GPU"));
}

absl::StatusOr<WorkerName> WithoutAName(const ServedGpus& gpus) {
  if (gpus.workers.empty()) return kFirstGpu;
  if (gpus.workers.size() == 1) return *gpus.workers.begin();
  return absl::InvalidArgumentError(
      absl::StrCat("no rank says on which GPU it is, and ", List(gpus.workers),
                   " are served here; name it in the devices of the join, as cuda:0"));
}

absl::StatusOr<std::vector<WorkerName>> ChooseGpus(const std::vector<std::string>& devices,
                                                   const ServedGpus& gpus) {
  if (gpus.workers.empty() && !gpus.others) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot be served here: ", gpus.why_none,
                     "; ask for backend=cpu (epctl doctor says what this machine has) [EPD-1402]"));
  }
  std::vector<WorkerName> chosen;
  for (const std::string& device : devices) {
    absl::StatusOr<std::optional<WorkerName>> one = WorkerOf(device, gpus);
    if (!one.ok()) return one.status();
    if (one->has_value()) chosen.push_back(**one);
  }
  if (chosen.empty()) {
    absl::StatusOr<WorkerName> only = WithoutAName(gpus);
    if (!only.ok()) return only.status();
    return std::vector<WorkerName>{*only};
  }
  if (chosen.size() == devices.size()) return chosen;
  if (std::set<WorkerName>(chosen.begin(), chosen.end()).size() == 1) {
    return std::vector<WorkerName>{chosen[0]};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(devices.size() - chosen.size(), " of ", devices.size(),
                   " ranks do not say on which GPU they are, and the others are on several; name "
                   "each rank's in the devices of the join, as cuda:0"));
}

}  // namespace

absl::StatusOr<std::vector<WorkerName>> ChooseWorkers(const GroupSpec& spec,
                                                      const std::vector<std::string>& devices,
                                                      const ServedGpus& gpus) {
  if (!spec.on_device()) return std::vector<WorkerName>{kCpuWorker};
  absl::StatusOr<std::vector<WorkerName>> chosen = ChooseGpus(devices, gpus);
  if (chosen.ok()) return chosen;
  return absl::Status(chosen.status().code(),
                      absl::StrCat("group=", Title(spec), " backend=", spec.backend, ": ",
                                   chosen.status().message()));
}

}  // namespace epd
