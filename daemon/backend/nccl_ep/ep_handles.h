// Which of the library's handles an operation uses, and whether that is told its routes first. Pure.
//
// A handle keeps the routes that it was told last, and what goes by it reads nothing else of them; to tell it is a
// collective of its own, which grows with the group's most tokens. So it is told once for all operations of a plan that
// come while it has its routes: two handles for each alignment and top-k serve a forward pair and a backward pair by turns,
// or two tenants.
//
// All members must answer alike, or one of them tells alone and waits for ever. So the answer follows from nothing but what
// they have alike: operations come in the order of their places, each is named by its tenant and its plan's id, which no
// other prepare of any tenant ever has, and the leader gives all ranks' numbers of tokens and recv capacities with the
// place. What a member finds out by itself, a plan that has changed or a layout that is not the plan's, makes its own
// operations fail, and changes no answer: the handle goes on to be used as all others think it is, until it is told
// something else. Since a handle takes rows of as many tokens as it was told alone, and ends the process else, a client that
// writes another plan under an old id gets an error, whatever is in it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/routing_plan.h"

namespace epd::nccl_ep {

// What the routes of an operation follow from.
struct EpRoutes {
  int64_t alignment = 1;  // Slots. A handle is made for these two.
  int32_t top_k = 0;
  uint64_t group_id = 0;  // Of the tenant.
  uint64_t plan_id = 0;
  std::vector<uint64_t> recv_capacity;  // [R]
  std::vector<uint32_t> num_tokens;     // [R]; empty: nobody has said, so they are told anew.

  friend bool operator==(const EpRoutes&, const EpRoutes&) = default;
};

// How the library has laid this rank's receive buffer out.
struct EpLayout {
  std::vector<int32_t> zones;  // [local experts] slots of each, padding included.
  int64_t total = 0;

  friend bool operator==(const EpLayout&, const EpLayout&) = default;
};

// What this member knows of the routes that a handle was told.
struct EpTold {
  PlanHeader plan = {};            // They are those of this plan.
  std::optional<EpLayout> layout;  // Once the operation that told them is complete.
  // Tokens from the first to behind the last that has no route that lands.
  int64_t first_bare = 0;
  int64_t end_bare = 0;
};

struct EpUse {
  int handle = 0;  // Of those for this alignment and top-k.
  bool tells = false;
  std::shared_ptr<EpTold> told;  // Of all operations that use what was told then.
};

// Not thread-safe.
class EpHandles {
 public:
  static constexpr int kOfEach = 2;  // For each alignment and top-k.

  // Of the operation whose turn it is. The handle that was used least lately is told anew.
  EpUse Use(const EpRoutes& routes);

 private:
  struct Entry {
    EpRoutes routes;
    int handle = 0;
    std::shared_ptr<EpTold> told;
  };
  std::map<std::pair<int64_t, int32_t>, std::list<Entry>> entries_;  // Used last first.
};

}  // namespace epd::nccl_ep
