// Client messages to bytes and bytes to server messages, in protobuf's format.
#pragma once

#include <string>
#include <string_view>

#include "client/c/attach_messages.h"

namespace epd::client {

// The bytes of an epd.v1.ClientMessage.
std::string EncodeClientMessage(const ClientMessage& message);

// The bytes of an epd.v1.GroupSpec.
std::string EncodeGroupSpec(const GroupSpec& spec);

// Reads an epd.v1.ServerMessage; fields that it does not know are skipped, as protobuf does.
//   DATA_LOSS  not a well-formed message; `message` is then unspecified.
Status DecodeServerMessage(std::string_view bytes, ServerMessage* message);

}  // namespace epd::client
