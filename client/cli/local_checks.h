// What `epctl doctor` can see of this machine without a daemon.
#pragma once

#include "client/cli/options.h"
#include "client/cli/socket_search.h"
#include "proto/epd/v1/node.pb.h"

namespace epd::cli {

// Adds a finding per place where a daemon is looked for, for its folder's owner and mode, for the
// programs that a private daemon needs, and for the limits that staging meets. Changes nothing on
// the machine.
void CheckLocally(const Options& options, const SearchContext& search,
                  google::protobuf::RepeatedPtrField<epd::v1::Finding>& findings);

// What there is of CUDA: runs the epd-worker beside epctl, which looks in a process of its own, and adds its
// findings; none where there is no such program. Blocks for at most half a minute.
void CheckCuda(google::protobuf::RepeatedPtrField<epd::v1::Finding>& findings);

}  // namespace epd::cli
