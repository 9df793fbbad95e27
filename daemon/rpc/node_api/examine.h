// What this node says of itself for a support archive.
#pragma once

#include <functional>

#include "daemon/node/node.h"
#include "proto/epd/v1/node.pb.h"

namespace epd {

// All nodes' together stay below what a coordinator may answer.
inline constexpr size_t kMaxExaminationBytes = 256 << 10;

// Control thread. With write_stacks epd and its workers write where their threads are; nobody waits for that, and the
// answer has what they wrote before. `done` is called on the control thread once the workers' figures are fresh.
void ExamineLocally(Node& node, const v1::ExamineNodesRequest& request,
                    std::function<void(const v1::NodeExamination&)> done);

}  // namespace epd
