// Control's effects for the worker, as messages of worker.proto.
#pragma once

#include "daemon/control/node_effects.h"
#include "daemon/core/ids.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// `self`: members of other nodes get session 0.
// Each worker of the group learns with what it proves to each other one who it is (daemon/tls/wire_secret.h).
v1::ToWorker ToProto(const StartTenant& effect, const NodeId& self,
                     const std::string& cluster_secret);
v1::ToWorker ToProto(const EndTenant& effect);
v1::ToWorker ToProto(const DrainTenant& effect);
v1::ToWorker ToProto(const MakeUniqueId& effect);
v1::ToWorker ToProto(const InitCommunicator& effect);

}  // namespace epd
