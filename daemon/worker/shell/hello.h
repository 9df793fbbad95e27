// The first words between epd and its worker.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "daemon/backend/nccl_library.h"
#include "daemon/worker/shell/epd_socket.h"
#include "daemon/worker/shell/served_backends.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// Waits for WorkerHello with its one descriptor.
//   UNAVAILABLE        epd is gone
//   DEADLINE_EXCEEDED  it says nothing for 30 s
//   INVALID_ARGUMENT   it says something else
absl::StatusOr<EpdMessage> ReceiveHello(EpdSocket& socket);

// Where it takes streams of other workers.
struct WireAddresses {
  std::string wire;     // Of all; empty: nowhere.
  std::string local;    // Of its own node's; empty: at the same place.
  std::string problem;  // Why nowhere.
};

v1::FromWorker ReadyMessage(const ServedBackends& served, const NcclLibrary& nccl,
                            const WireAddresses& addresses);

}  // namespace epd
