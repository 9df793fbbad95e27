// The messages of the attach socket, by the names that the client uses. nanopb makes the structs from
// proto/epd/v1/attach.proto, which says what each field means, and from attach.options.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "client/c/attach.nanopb.h"
#include "proto/epd/v1/backends.h"
#include "proto/epd/v1/limits.h"

namespace epd::client {

inline constexpr uint32_t kMinAttachVersion = 1;

using Deadlines = epd_v1_Deadlines;
using GroupSpec = epd_v1_GroupSpec;

using Attach = epd_v1_Attach;
using Join = epd_v1_Join;
using Leave = epd_v1_Leave;
using Drained = epd_v1_Drained;
using DrainedCount = epd_v1_Drained_Count;
using ClientMessage = std::variant<Attach, Join, Leave, Drained>;

using Attached = epd_v1_Attached;
using Joined = epd_v1_Joined;
using JoinedArena = epd_v1_Joined_Arena;
using JoinedMember = epd_v1_Joined_Member;
using JoinedSlots = epd_v1_Joined_Slots;
using JoinFailed = epd_v1_JoinFailed;
using Left = epd_v1_Left;
using Reform = epd_v1_Reform;
using GroupEnded = epd_v1_GroupEnded;
using Goodbye = epd_v1_Goodbye;
using GroupDraining = epd_v1_GroupDraining;

// A message of a newer daemon that this library does not know; it is skipped.
struct UnknownMessage {};

using ServerMessage = std::variant<UnknownMessage, Attached, Joined, JoinFailed, Left, Reform,
                                   GroupEnded, Goodbye, GroupDraining>;

// The greeting of a client that speaks all versions that this library knows.
inline Attach MakeAttach(std::string client_name) {
  return {.min_version = kMinAttachVersion,
          .max_version = limits::kProtocolVersion,
          .features = 0,
          .client_name = std::move(client_name),
          .client_version = {},
          .traceparent = {},
          .started = 0};
}

// Whether the group's staging is memory of GPUs.
inline bool IsOnDevice(const GroupSpec& spec) { return epd::IsOnDevice(spec.backend); }

// ---- to bytes and back, in protobuf's format ----

// The bytes of an epd.v1.ClientMessage.
std::string EncodeClientMessage(const ClientMessage& message);

// The bytes of an epd.v1.GroupSpec.
std::string EncodeGroupSpec(const GroupSpec& spec);

// Reads an epd.v1.ServerMessage; fields that it does not know are skipped, as protobuf does.
//   DATA_LOSS  not a well-formed message; `message` is then unspecified.
Status DecodeServerMessage(std::string_view bytes, ServerMessage* message);

}  // namespace epd::client
