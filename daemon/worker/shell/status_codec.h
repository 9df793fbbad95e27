// Statuses in protos.
#pragma once

#include "absl/status/status.h"
#include "proto/epd/v1/attach.pb.h"

namespace epd {

absl::Status StatusFromProto(const v1::Status& status);
v1::Status StatusToProto(const absl::Status& status);

}  // namespace epd
