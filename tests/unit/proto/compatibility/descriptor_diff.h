// What a change of the .proto files would break for somebody who was built against the old ones.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.pb.h"

namespace epd {

// One sentence per thing of `golden` that `current` lacks or means otherwise: files, messages,
// fields (name, number, type, label, oneof), enum values, services, methods (types, streaming).
// Additions are no difference. A removed field is a difference unless both its number and its name
// are reserved.
std::vector<std::string> BreakingDifferences(const google::protobuf::FileDescriptorSet& golden,
                                             const google::protobuf::FileDescriptorSet& current);

}  // namespace epd
