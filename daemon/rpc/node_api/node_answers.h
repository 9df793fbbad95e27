// What this node answers from what it knows: the content of each RPC that neither changes nor asks
// anything.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// Control thread. Errors: NOT_FOUND for a group that does not exist, INVALID_ARGUMENT for a spec.
absl::Status Fill(const Node&, const v1::GetStatusRequest&, v1::GetStatusResponse&);
absl::Status Fill(const Node&, const v1::GetMemoryRequest&, v1::GetMemoryResponse&);
absl::Status Fill(const Node&, const v1::PlanMemoryRequest&, v1::PlanMemoryResponse&);
absl::Status Fill(const Node&, const v1::GetFiguresRequest&, v1::GetFiguresResponse&);
// lists.cc
absl::Status Fill(const Node&, const v1::GetConfigRequest&, v1::GetConfigResponse&);
absl::Status Fill(const Node&, const v1::ListGroupsRequest&, v1::ListGroupsResponse&);
absl::Status Fill(const Node&, const v1::ListRanksRequest&, v1::ListRanksResponse&);
absl::Status Fill(const Node&, const v1::ListSessionsRequest&, v1::ListSessionsResponse&);

// Any thread: `done` gets fresh figures on the control thread. False: epd ends, or is overloaded.
bool AskFigures(Node& node, std::function<void(v1::GetFiguresResponse)> done);

void FillGpu(const WorkerEntry& entry, v1::Gpu& out);

}  // namespace epd
