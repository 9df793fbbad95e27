// Between the engine's messages and their protos.
#pragma once

#include <optional>

#include "daemon/worker/engine/peer_message.h"
#include "proto/epd/v1/wire.pb.h"

namespace epd {

v1::WireMessage ToProto(const PeerMessage& message);
// Nothing: it has no meaning.
std::optional<PeerMessage> FromProto(const v1::WireMessage& message);

}  // namespace epd
