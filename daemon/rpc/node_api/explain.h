// Who waits for whom in a group, and who is to blame.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "daemon/control/formation_errors.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

v1::FormationReport ToProto(const FormationReport& report);

// What this node knows of the group, the last operations of its ranks included. `done` is called on
// the control thread, within a second.
void ExplainLocally(Node& node, const std::string& name,
                    std::function<void(const v1::LocalExplanation&)> done);

// Operations of the past that are shown of each rank of a group of `num_ranks`.
uint32_t PastShown(uint32_t num_ranks);

// Pure: joins what the nodes know (the coordinator's first, if it answered) of the group's tenants, or of `tenant`, and
// names one culprit: a worker that does not answer; else the rank that most of the operations wait for that are open for
// a second; else a dead or missing rank of a tenant that is not READY; else a node that does not answer. `past` is by rank.
void Explain(const std::vector<v1::LocalExplanation>& nodes,
             const std::optional<std::string>& tenant, v1::ExplainGroupResponse& out);

}  // namespace epd
