#include "daemon/backend/unique_id_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "daemon/backend/child_output.h"
#include "daemon/backend/nccl_library.h"
#include "daemon/core/unique_fd.h"

namespace epd {

absl::StatusOr<std::string> MakeUniqueIdInChild(const std::string& program,
                                                const std::string& nccl_path,
                                                absl::Duration limit) {
  const absl::StatusOr<ChildOutput> child = RunChild(program, {kUniqueIdFlag + nccl_path}, limit);
  if (!child.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("for a unique id: ", child.status().message()));
  }
  if (child->late) {
    return absl::DeadlineExceededError(
        absl::StrCat("ncclGetUniqueId took longer than ", absl::FormatDuration(limit),
                     "; check the network that NCCL_SOCKET_IFNAME names"));
  }
  if (child->output.size() == kNcclUniqueIdBytes) return child->output;
  return absl::UnavailableError(child->complaints.empty() ? "the process that makes unique ids died"
                                                          : child->complaints);
}

int UniqueIdChildMain(const std::string& nccl_path) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const UniqueFd out(dup(STDOUT_FILENO));
  dup2(STDERR_FILENO, STDOUT_FILENO);  // NCCL_DEBUG prints to standard output.
  const NcclLibrary nccl({nccl_path});
  const absl::StatusOr<std::string> id = nccl.MakeUniqueId();
  if (!id.ok()) {
    std::fprintf(stderr, "%s", std::string(id.status().message()).c_str());
    return 1;
  }
  return write(out.get(), id->data(), id->size()) == static_cast<ssize_t>(id->size()) ? 0 : 1;
}

}  // namespace epd
