// What is known on this node about its groups, put together from coordinator, node and worker.
#pragma once

#include <string>
#include <vector>

#include "daemon/control/rendezvous.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Every living group, by name: the coordinator's full picture where this epd coordinates, else what
// the coordinator told it. Control thread.
std::vector<GroupStatus> KnownGroups(const Node& node);

// The same without the ranks.
std::vector<GroupSummary> KnownSummaries(const Node& node);

// One group with its ranks and the worker's figures.
v1::Group DescribeGroup(const Node& node, const GroupStatus& group);

// What this node's workers did for a group, also for one that has ended.
void AddTotals(const Node& node, GroupId group, v1::Group& out);

// The ranks of a group, missing and dead ones included, by rank.
std::vector<v1::Rank> DescribeRanks(const Node& node, const GroupStatus& group);

// "there is no group 'x'; there are: a, b".
absl::Status NoSuchGroup(const Node& node, const std::string& name);

}  // namespace epd
