// Identifiers as types, so that a rank is never passed for a session.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

namespace epd {

// A number that means one thing. Zero means "none" for every id but Rank. Ordered, hashable, cheap
// to copy.
template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr explicit operator bool() const { return value != Rep{}; }
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value);
  }
};

// One attached client. Unique within one incarnation of its node's epd.
using SessionId = StrongId<struct SessionIdTag, uint64_t>;
// One creation of one tenant of a group, or of the communicator that its tenants share; random, so
// two groups of the same name never share it.
using GroupId = StrongId<struct GroupIdTag, uint64_t>;
// A place in a group, 0-based.
using Rank = StrongId<struct RankTag, uint32_t>;
// Version of "which worker serves each rank" of a group. Only grows; the first is 1.
using Epoch = StrongId<struct EpochTag, uint64_t>;
// Version of "which sessions serve each rank" inside a group id. Only grows; the first is 1.
using Formation = StrongId<struct FormationTag, uint64_t>;
// One run of an epd, of a coordinator or of a worker; random, compared for equality only.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;
// Pairs an answer with its request. Unique within one session (Join, Leave) or one node (RPCs).
using RequestId = StrongId<struct RequestIdTag, uint64_t>;

// The name of a node, e.g. its host name; unique in the cluster.
struct NodeId {
  std::string value;

  friend auto operator<=>(const NodeId&, const NodeId&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const NodeId& id) {
    return H::combine(std::move(h), id.value);
  }
};

}  // namespace epd
