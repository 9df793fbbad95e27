// The worker executor on the CPU: moves an operation's rows between its ranks' regions.
#pragma once

#include "absl/status/status.h"
#include "daemon/backend/cpu/memfd_arenas.h"
#include "daemon/backend/move_job.h"

namespace epd {

// Writes every rank's output (proto/epd/v1/region_layout.h), on the calling thread. The stages and
// plan copies are client memory and may change while they are read: every plan is copied before it
// is validated, and the kernels check each stage where they read it.
//   INVALID_ARGUMENT  a rank's sizes do not fit its region, its plan or the group
//   ABORTED           a rank's plan is of another epoch
//   DATA_LOSS         a rank's plan or stage is corrupt; the message names the rank
//   RESOURCE_EXHAUSTED  overflow without drop, or no address space for mapping an arena
absl::Status MoveRowsOnCpu(MemfdArenas& arenas, const MoveGroup& group, const MoveJob& job);

}  // namespace epd
