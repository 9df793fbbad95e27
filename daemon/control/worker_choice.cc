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

bool WantsGpu(const GroupSpec& spec) { return spec.backend == "cuda" || spec.backend == "nccl_ep"; }

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

}  // namespace

absl::StatusOr<WorkerName> ChooseWorker(const GroupSpec& spec,
                                        const std::vector<std::string>& devices,
                                        const ServedGpus& gpus) {
  if (!WantsGpu(spec)) return kCpuWorker;
  const std::string group = absl::StrCat("group=", Title(spec), " backend=", spec.backend);
  if (gpus.workers.empty() && !gpus.others) {
    return absl::FailedPreconditionError(
        absl::StrCat(group, " cannot be served here: ", gpus.why_none,
                     "; ask for backend=cpu (epctl doctor says what this machine has)"));
  }
  std::optional<WorkerName> named;
  for (const std::string& device : devices) {
    const std::optional<WorkerName> one = Named(device, gpus);
    if (!one.has_value() && absl::StartsWith(device, kUuidPrefix)) {
      return absl::FailedPreconditionError(absl::StrCat(
          group, ": a rank is on ", absl::CHexEscape(device),
          ", and no worker of this node that runs has that GPU; list it in the setting "
          "cuda_devices, or name GPUs by number in CUDA_VISIBLE_DEVICES"));
    }
    if (!one.has_value() || !one->on_gpu()) continue;
    if (named.has_value() && *named != *one) {
      return absl::UnimplementedError(absl::StrCat(
          group, ": ranks of one Join are on ", ToString(*named), " and ", ToString(*one),
          "; a Join is served by one GPU so far: use one process per GPU"));
    }
    named = one;
  }
  if (named.has_value()) {
    if (gpus.others || gpus.workers.count(*named) > 0) return *named;
    return absl::FailedPreconditionError(absl::StrCat(
        group, ": a rank is on ", ToString(*named), ", which epd does not serve, only ",
        List(gpus.workers), "; add it to the setting cuda_devices, or use another GPU"));
  }
  if (gpus.workers.empty()) return kFirstGpu;
  if (gpus.workers.size() == 1) return *gpus.workers.begin();
  return absl::InvalidArgumentError(
      absl::StrCat(group, ": no rank says on which GPU it is, and ", List(gpus.workers),
                   " are served here; name it in the devices of the join, as cuda:0"));
}

}  // namespace epd
