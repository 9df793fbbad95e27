// What the settings say of this node's workers.
#pragma once

#include <cstdint>

#include "daemon/control/worker_choice.h"
#include "daemon/core/worker_name.h"
#include "daemon/node/settings/settings.h"
#include "daemon/node/workers/worker_supervisor.h"
#include "daemon/node/workers/worker_table.h"

namespace epd {

// How the worker of this name is started and watched. `certificates` are what serves (CertificateFiles::copies);
// `incarnation` is epd's.
WorkerSupervisor::Options MakeWorkerOptions(const Settings& settings,
                                            PacketChannel::Fds certificates, uint64_t incarnation,
                                            const WorkerName& name);

// The GPUs that groups may ask for now: those of the settings, and those of which a worker runs.
ServedGpus FindServedGpus(const Settings& settings, const WorkerTable& workers);

}  // namespace epd
