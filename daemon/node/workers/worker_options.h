// What the settings say of this node's workers.
#pragma once

#include <cstdint>

#include "daemon/control/worker_choice.h"
#include "daemon/core/worker_name.h"
#include "daemon/node/settings/settings.h"
#include "daemon/node/workers/worker_supervisor.h"
#include "daemon/node/workers/worker_table.h"
#include "daemon/tls/peer_check.h"

namespace epd {

// How the worker of this name is started and watched. `tls` are copies that serve; `incarnation` is
// epd's.
WorkerSupervisor::Options MakeWorkerOptions(const Settings& settings, const TlsFiles& tls,
                                            uint64_t incarnation, const WorkerName& name);

// The GPUs that groups may ask for now: those of the settings, and those of which a worker runs.
ServedGpus FindServedGpus(const Settings& settings, const WorkerTable& workers);

}  // namespace epd
