// What sessions of all nodes ask for and hold: one claim per Join, and what the coordinator answers.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/rendezvous/changes.h"

namespace epd {

// Names one Join in the whole cluster.
struct ClaimKey {
  NodeId node;
  Incarnation incarnation;
  SessionId session;
  RequestId request;

  friend auto operator<=>(const ClaimKey&, const ClaimKey&) = default;
};

struct KnownClaim {
  Claim claim;         // As last reported.
  uint64_t taken = 0;  // ... in this report of all that were taken.
  uint64_t arrival = 0;
  absl::Time first_seen;
  absl::Time deadline;  // By this coordinator's clock.
  ClaimDisposition disposition = ClaimDisposition::kWaiting;
  GroupId group;        // When granted.
  absl::Status status;  // Why it waits or has failed.
  Formation since;      // First formation it takes part in; zero: none yet.
  bool served = false;  // Has been in a READY formation: its Join is answered.
  GroupId given_back;   // Its node may still report this one as the group that it was granted.

  // Still has a deadline to meet.
  bool pending() const { return !served && disposition != ClaimDisposition::kFailed; }
  // Its Join was never answered, by this coordinator or one before.
  bool unanswered() const { return !served && !claim.joined; }
};

// A claim that does not stand any more, by what its node says.
struct ReleasedClaim {
  ClaimKey key;
  ClaimFate fate = ClaimFate::kGone;
  absl::Status cause;
  bool vanished = false;  // The node has forgotten it: Erase it once it is released.
};

// Owns the claims and their dispositions, and knows which wait for which group's name.
class ClaimTable {
 public:
  explicit ClaimTable(Changes& changes) : changes_(changes) {}

  // Takes over the node's claims as reported; returns those that are to be released, in order.
  std::vector<ReleasedClaim> Take(const NodeReport& report);
  void Erase(const ClaimKey& key) { claims_.erase(key); }

  // These three answer a claim; a waiting one says what for.
  void Wait(const ClaimKey& key, const std::string& what_for);
  void Grant(const ClaimKey& key, GroupId group);
  void Fail(const ClaimKey& key, const absl::Status& status);

  // Of a granted one that no node has been told of as joined: it waits again.
  void GiveBack(const ClaimKey& key, const std::string& why);

  // Of a granted one: `formation` is the first that it takes part in, unless it has had one.
  void Start(const ClaimKey& key, Formation formation);
  void MarkServed(const ClaimKey& key) { claims_.at(key).served = true; }

  const std::map<ClaimKey, KnownClaim>& all() const { return claims_; }
  const KnownClaim* Find(const ClaimKey& key) const;
  const KnownClaim& At(const ClaimKey& key) const { return claims_.at(key); }
  struct Range {
    std::map<ClaimKey, KnownClaim>::const_iterator first;
    std::map<ClaimKey, KnownClaim>::const_iterator after;

    auto begin() const { return first; }
    auto end() const { return after; }
  };
  Range OfNode(const NodeId& node) const;
  // The claim as holder of one of its ranks, and the worker that serves it.
  RankHolder Holder(const ClaimKey& key, Rank rank) const;
  WorkerId Worker(const ClaimKey& key, Rank rank) const;

  // In order of arrival.
  std::vector<ClaimKey> WaitingFor(const std::string& name) const;
  // Marks every name that a claim waits for.
  void MarkWaiting() const;

  std::vector<ClaimKey> Expired() const;  // At the call's time.
  // No later than the deadline of any pending claim; exact after Tighten(), which looks at all.
  absl::Time Earliest() const { return earliest_; }
  void Tighten();

 private:
  // Those of `node` that the last report, which is its, does not name.
  std::vector<ReleasedClaim> Vanished(const NodeId& node) const;
  void StopWaiting(const ClaimKey& key, const KnownClaim& known);

  Changes& changes_;
  std::map<ClaimKey, KnownClaim> claims_;
  std::map<std::string, std::set<std::pair<uint64_t, ClaimKey>>> waiting_;  // By name and arrival.
  uint64_t next_arrival_ = 1;
  uint64_t num_taken_ = 0;
  absl::Time earliest_ = absl::InfiniteFuture();
};

}  // namespace epd
