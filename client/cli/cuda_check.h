// What `epctl doctor` can see of CUDA without a daemon.
#pragma once

#include "proto/epd/v1/node.pb.h"

namespace epd::cli {

// Runs the epd-worker beside epctl, which looks in a process of its own, and adds its findings; none
// where there is no such program. Blocks for at most half a minute.
void CheckCuda(google::protobuf::RepeatedPtrField<epd::v1::Finding>& findings);

}  // namespace epd::cli
