// Between the engine's messages and their protos.
#pragma once

#include <optional>

#include "daemon/worker/engine/peer_message.h"
#include "proto/epd/v1/wire.pb.h"

namespace epd {

// What a message is about. Those of one stream, which is ordered, say so only where it is not what the one before was about:
// who writes a stream and who reads it each keep the last one.
struct MessageSubject {
  GroupId group;
  Formation formation;
  OperationKey key;

  friend bool operator==(const MessageSubject&, const MessageSubject&) = default;
};
using LastSubject = std::optional<MessageSubject>;

v1::WireMessage ToProto(const PeerMessage& message, LastSubject& last);
// Nothing: it has no meaning.
std::optional<PeerMessage> FromProto(const v1::WireMessage& message, LastSubject& last);

}  // namespace epd
