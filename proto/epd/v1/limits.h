// The limits that more than one of client, epd, worker and kernels must know, each once, and how they relate.
//
// What is above a limit is refused where it is asked for, with an error that names the limit. Limits that only one file
// knows stand in that file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace epd::limits {

// ---- messages between processes of one machine (daemon/packet, the attach socket) ----
inline constexpr std::size_t kDatagramBytes = 256 * 1024;
inline constexpr std::size_t kDatagramFds = 250;  // The kernel's SCM_MAX_FD is 253.
// Of the attach socket and of node.proto, which versions all of epd's interfaces together.
inline constexpr std::uint32_t kMinProtocolVersion = 1;
inline constexpr std::uint32_t kProtocolVersion = 1;

// ---- ranks of a group ----
// What the control plane forms, and is measured with.
inline constexpr std::uint32_t kGroupRanks = 4096;
// What a routing plan has room for, and one process may join.
inline constexpr std::uint32_t kPlanRanks = 1024;
inline constexpr std::uint32_t kJoinRanks = kPlanRanks;
// Larger groups have no eager buffers.
inline constexpr std::uint32_t kEagerRanks = 256;
// What a worker serves, and the worker of a GPU.
inline constexpr std::uint32_t kServedRanks = kPlanRanks;
inline constexpr std::uint32_t kDeviceRanks = 125;
// Of one message, which goes in several datagrams (descriptors_ahead.h): each rank's staging, read-write and read-only.
inline constexpr std::size_t kMessageFds = 2 * kServedRanks;

static_assert(kEagerRanks <= kPlanRanks && kPlanRanks <= kGroupRanks);
static_assert(kServedRanks <= kPlanRanks && kJoinRanks <= kPlanRanks);
static_assert(kDeviceRanks <= kEagerRanks);

// ---- op slots that a session has for one worker ----
// What every client takes; and the most, since one word has a bit for each 64 of them (AreaId::kUsedGroups).
inline constexpr std::uint32_t kMinOpSlots = 256;
inline constexpr std::uint32_t kMaxOpSlots = 4096;

// ---- what a group's spec may say ----
inline constexpr std::uint32_t kExperts = 65536;
inline constexpr std::uint32_t kTopK = 128;
inline constexpr std::uint32_t kAlignment = 65536;  // Slots; a power of two.
inline constexpr std::uint32_t kHidden = 1u << 20;
inline constexpr std::uint32_t kSlots = 1u << 30;  // Of a receive buffer.
// An element of a row that is only moved, and of one that is summed, at its widest.
inline constexpr std::uint32_t kMovedElementBytes = 8;
inline constexpr std::uint32_t kSummedElementBytes = 4;

// ---- texts that travel, in bytes (text.h) ----
inline constexpr std::size_t kNameBytes =
    200;  // Of a group, tenant, instance, backend, client, program.
inline constexpr std::size_t kMetadataBytes = 256;
inline constexpr std::size_t kDeviceNameBytes = 64;
inline constexpr std::size_t kOperationNameBytes = 512;  // As errors and `epctl why` show it.
inline constexpr std::size_t kErrorBytes = 2560;         // Of an error's text.

}  // namespace epd::limits
