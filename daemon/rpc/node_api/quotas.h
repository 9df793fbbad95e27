// What users have of what settings limit.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"
#include "proto/epd/v1/worker.pb.h"

namespace epd {

// By uid, over all workers: operations and staging.
std::map<uint32_t, v1::WorkerSnapshot::Use> UsesOfWorkers(const Node& node);

// `max` 0: all of the node's staging.
void PutStaging(const std::string& setting, uint64_t max, const Settings& settings, uint64_t used,
                v1::Quota& out);

// Of one session, and of all that have one.
void PutQuotas(const Node& node, const AttachSession& session, v1::Session& out);
void PutUsers(const Node& node, v1::ListSessionsResponse& out);

}  // namespace epd
