// Whether this machine has what NCCL EP needs, said before it is asked to do anything: it ends its process
// where something is missing.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/backend/nccl_ep/nccl_ep_table.h"

namespace epd::nccl_ep {

// Asks in a process of its own (machine_probe.h), then tells the library where its compiler, its sources,
// NCCL's headers and its cache are, unless the environment does, and opens it. Blocks for seconds. Opens it
// once; a refusal is not kept. `program`: what is run to ask; `nccl_path`: the NCCL of this worker;
// `ordinal`: the device.
//   FAILED_PRECONDITION  what is missing, and what to do
absl::StatusOr<const Table*> OpenLibrary(const std::string& program, const std::string& nccl_path,
                                         int ordinal);

// A folder for what the library compiles that nobody else can write to: in XDG_CACHE_HOME, else in HOME's
// .cache, else, where neither is set, in /tmp. A variable that is relative, names nothing, or names another user's folder (as with sudo -E:
// that user could not use or remove what is made there) is refused. "" and the reason in `problem` when there is none.
std::string CacheFolder(std::string& problem);

}  // namespace epd::nccl_ep
