// Who coordinates the cluster, seen from one node. Pure: what the store says in, what to do out.
//
// One key holds the coordinator's name and hangs on its lease. A node that finds the key missing
// writes itself, by a transaction that compares the key's revision; so of many candidates one wins.
// A node whose connection to the coordinator is refused (its process is gone) need not wait for the
// lease: it replaces the key by the same transaction. The transaction also takes a fresh block of
// epochs. A coordinator that cannot renew its lease steps down by its own clock, before the lease
// can have expired at the store.
//
// Guarantees, each with a checker in tests/unit/daemon/store/election_checkers.h:
//   agreement      At one revision of the key there is one coordinator, and it alone leads with it.
//   growing        Blocks of epochs of later revisions lie above those of earlier ones.
//   no_overlap     Of two nodes that lead, the older has stepped down or is dead before the younger
//                  begins, unless the younger was refused by its address. A store that loses its data
//                  forgets the lease, too: then they may overlap until the older's lease is over.
//   fenced         Nothing is written by a coordinator whose revision is not the key's.
//   keeps          A coordinator whose store and lease are well is not replaced.
//   reclaimed      Once faults end, some node leads, within the lease and a retry.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/backoff.h"
#include "daemon/store/leadership.h"

namespace epd {

// ---- what to do ----

// Write the coordinator key by compare-and-swap, on condition that its revision is still
// `expected` (0: that there is none), and take a block of epochs above `min_floor`.
struct Campaign {
  int64_t expected = 0;
  uint64_t min_floor = 0;
};
struct Lead {
  int64_t revision = 0;
  EpochBlock block;
};
// Follow `leader`; this node does not lead (any more).
struct Follow {
  Leadership leader;
};
// There is nobody to follow; running groups go on, nothing is formed.
struct NoLeader {
  absl::Status why;
};
// An operator must know; OK: what was said last is over. Said once for each state of the store, however often it is
// tried: a state is which call fails with which code, where no answer and a late one are the same.
struct StoreProblem {
  absl::Status what;
};

// What is asked of the store. A store may refuse some of it and do the rest: one without space takes no writes, but
// renews leases and is read.
enum class StoreCall { kLease, kRead, kRegister, kCampaign, kKeep };

using ElectionAction = std::variant<Campaign, Lead, Follow, NoLeader, StoreProblem>;

class Election {
 public:
  using Actions = std::vector<ElectionAction>;

  struct Options {
    std::string node;
    Incarnation incarnation;
    bool can_lead = true;  // It has an address.
    absl::Duration lease = absl::Seconds(3);
    // Steps down so long before its lease may expire: clocks drift, and stopping takes a moment.
    absl::Duration margin = absl::Milliseconds(500);
    // Between campaigns that the store refuses.
    Backoff::Policy campaigns = {absl::Milliseconds(200), absl::Seconds(3),
                                 absl::InfiniteDuration(), Backoff::kTowardsOthers};
    uint64_t seed = 0;  // Of its jitter.
  };

  explicit Election(Options options)
      : options_(std::move(options)), campaigns_(options_.campaigns, options_.seed) {}

  // The lease was granted or renewed; `asked` is when the request was sent.
  Actions OnLease(absl::Time now, absl::Time asked);
  // The store says that the lease has expired.
  Actions OnLeaseLost(absl::Time now);
  // The key was read, at the store's `revision`; nothing: there is none. `ceiling` is the highest
  // epoch that was ever given out, as the store knows it.
  Actions OnKey(absl::Time now, const std::optional<Leadership>& key, int64_t revision,
                uint64_t ceiling);
  // The answer to Campaign: this node's key has `revision` now, and `block` is its own.
  Actions OnWon(absl::Time now, int64_t revision, const EpochBlock& block);
  Actions OnLost(absl::Time now);
  // A call to the store has failed.
  Actions OnStoreError(absl::Time now, StoreCall call, const absl::Status& error);
  // One that no other event tells of (kRegister, kKeep) has gone well.
  Actions OnStoreDone(absl::Time now, StoreCall call);
  // Nobody listens at the address of the leader that is followed.
  Actions OnRefused(absl::Time now, const Leadership& leader);
  Actions OnTick(absl::Time now);
  // When to call OnTick.
  absl::Time NextDeadline() const;

  bool leads() const { return leading_; }
  const std::optional<Leadership>& leader() const { return key_; }
  // When this node takes its lease for over.
  absl::Time lease_until() const { return lease_until_; }

 private:
  bool HoldsLease(absl::Time now) const { return now < lease_until_; }
  void StepDown(const std::string& why, Actions& actions);
  void TryToLead(absl::Time now, int64_t expected, Actions& actions);
  // How `call` went. Says what an operator must know if that has changed.
  void Note(StoreCall call, const absl::Status& status, Actions& actions);

  const Options options_;
  absl::Time lease_until_ = absl::InfinitePast();
  std::optional<Leadership> key_;  // As last read.
  bool campaigning_ = false;
  bool leading_ = false;
  bool told_ = false;           // Follow or NoLeader has been said for the present state.
  int64_t store_revision_ = 0;  // Highest seen.
  uint64_t ceiling_ = 0;        // Highest seen.
  Backoff campaigns_;
  absl::Time may_campaign_ = absl::InfinitePast();
  std::map<StoreCall, absl::Status> failing_;  // How each call went last.
  absl::Status problem_;                       // Said last.
};

}  // namespace epd
