// Elections of some nodes against a model of etcd, with lost and late messages, crashes, a store
// that is down or has lost its data. One seed is one run.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/store/election.h"
#include "tests/unit/daemon/store/election_checkers.h"

namespace epd {

enum class ElectionBug {
  kNone,
  kNoCompare,     // The store applies every transaction.
  kSameBlock,     // Every winner gets the same epochs.
  kSameRevision,  // The store forgets to count.
  kNoStepDown,    // A leader neither ticks nor reads its key.
  kNobodyRuns,    // Campaigns are never sent once faults have ended.
  kLeasesExpire,  // The store lets leases expire that are renewed.
};

struct ElectionRun {
  uint64_t seed = 1;
  bool faults = true;
  bool data_loss = false;
  ElectionBug bug = ElectionBug::kNone;
};

class ElectionWorld {
 public:
  explicit ElectionWorld(const ElectionRun& run) : run_(run), rng_(run.seed) {
    for (size_t i = 0; i < kNodes; ++i) StartNode(i);
    for (int ms = 0; run_.faults && ms < 60'000; ms += 500)
      At(absl::Milliseconds(ms), [this] { Fault(); });
    history_.faults_end = start_ + (run_.faults ? absl::Seconds(60) : absl::ZeroDuration());
    At(history_.faults_end - start_, [this] { EndFaults(); });
  }

  ElectionHistory Run() {
    history_.end = history_.faults_end + absl::Seconds(20);
    while (!queue_.empty() && queue_.begin()->first.first <= history_.end) {
      now_ = queue_.begin()->first.first;
      const std::function<void()> what = std::move(queue_.begin()->second);
      queue_.erase(queue_.begin());
      what();
    }
    return history_;
  }

  static constexpr absl::Duration kReclaim = absl::Seconds(5);

 private:
  static constexpr size_t kNodes = 4;

  struct OneNode {
    bool alive = true;
    uint64_t run = 0;  // Counts restarts: what was meant for an older run is dropped.
    double rate = 1;   // Of its clock.
    bool has_lease = false;
    std::unique_ptr<Election> election;
    std::optional<size_t> reign;
    bool by_refusal = false;
  };
  struct Key {
    Leadership value;
    uint64_t lease = 0;
  };

  int Pick(int below) { return static_cast<int>(rng_() % static_cast<uint64_t>(below)); }
  void At(absl::Duration delay, std::function<void()> what) {
    queue_[{now_ + delay, next_event_++}] = std::move(what);
  }
  absl::Duration Delay() { return absl::Milliseconds(1 + Pick(hard_ ? 300 : 5)); }
  bool Lost() { return down_ || (hard_ && Pick(5) == 0); }
  absl::Time ClockOf(const OneNode& node) const { return start_ + (now_ - start_) * node.rate; }

  void StartNode(size_t i) {
    OneNode& node = nodes_[i];
    const uint64_t run = node.run + 1;
    node = OneNode{};
    node.run = run;
    node.rate = 0.98 + 0.01 * Pick(5);
    Election::Options options;
    options.node = absl::StrCat("n", i);
    options.incarnation = Incarnation{i * 1000 + run + 1};
    node.election = std::make_unique<Election>(options);
    Loop(i, run);
  }

  void Crash(size_t i) {
    OneNode& node = nodes_[i];
    node.alive = false;
    if (!node.reign.has_value()) return;
    history_.reigns[*node.reign].until = now_;
    history_.reigns[*node.reign].dead = true;
    node.reign.reset();
  }

  bool Runs(size_t i, uint64_t run) const { return nodes_[i].alive && nodes_[i].run == run; }

  void Loop(size_t i, uint64_t run) {
    if (!Runs(i, run)) return;
    if (!DoesNotLook(i)) Do(i, nodes_[i].election->OnTick(ClockOf(nodes_[i])));
    KeepLease(i, run);
    Read(i, run);
    At(absl::Milliseconds(200), [this, i, run] { Loop(i, run); });
  }

  bool DoesNotLook(size_t i) const {
    return run_.bug == ElectionBug::kNoStepDown && nodes_[i].reign.has_value();
  }

  // Sends a request to the store and its answer back, each perhaps late or lost.
  void Ask(size_t i, uint64_t run, StoreCall call,
           std::function<std::function<void()>()> at_store) {
    if (Lost()) {
      At(absl::Milliseconds(500), [this, i, run, call] {
        if (Runs(i, run) && !DoesNotLook(i))
          Do(i, nodes_[i].election->OnStoreError(ClockOf(nodes_[i]), call,
                                                 absl::UnavailableError("etcd is down")));
      });
      return;
    }
    At(Delay(), [this, i, run, at_store = std::move(at_store)] {
      ExpireLeases();
      const std::function<void()> answer = at_store();
      if (Lost()) return;
      At(Delay(), [this, i, run, answer] {
        if (Runs(i, run)) answer();
      });
    });
  }

  void KeepLease(size_t i, uint64_t run) {
    const absl::Time asked = ClockOf(nodes_[i]);
    Ask(i, run, StoreCall::kLease, [this, i, run, asked] {
      const uint64_t lease = i * 1000 + run;
      const bool expired = nodes_[i].has_lease && leases_.count(lease) == 0;
      leases_[lease] = now_ + absl::Seconds(3);
      return std::function<void()>([this, i, asked, expired] {
        OneNode& node = nodes_[i];
        node.has_lease = true;
        if (expired && !DoesNotLook(i)) Do(i, node.election->OnLeaseLost(ClockOf(node)));
        Do(i, node.election->OnLease(ClockOf(node), asked));
      });
    });
  }

  void Read(size_t i, uint64_t run) {
    Ask(i, run, StoreCall::kRead, [this, i] {
      const std::optional<Leadership> key =
          key_.has_value() ? std::optional(key_->value) : std::nullopt;
      const int64_t revision = revision_;
      const uint64_t ceiling = ceiling_;
      return std::function<void()>([this, i, key, revision, ceiling] {
        OneNode& node = nodes_[i];
        // The driver reads one after the other; an answer that is older than another is dropped.
        if (DoesNotLook(i)) return;
        if (revision < revision_ && !run_.data_loss) return;
        Do(i, node.election->OnKey(ClockOf(node), key, revision, ceiling));
      });
    });
  }

  void ExpireLeases() {
    for (auto it = leases_.begin(); it != leases_.end();) {
      const bool early = run_.bug == ElectionBug::kLeasesExpire && Pick(200) == 0;
      it = it->second < now_ || early ? leases_.erase(it) : std::next(it);
    }
    if (!key_.has_value() || leases_.count(key_->lease) > 0) return;
    key_.reset();
    ++revision_;
  }

  void Do(size_t i, const Election::Actions& actions) {
    OneNode& node = nodes_[i];
    for (const ElectionAction& action : actions) {
      if (const auto* campaign = std::get_if<Campaign>(&action)) Try(i, node.run, *campaign);
      if (const auto* lead = std::get_if<Lead>(&action)) {
        EndReign(i);
        Reign reign;
        reign.incarnation = i * 1000 + node.run;
        reign.revision = lead->revision;
        reign.block = lead->block;
        reign.from = now_;
        reign.by_refusal = node.by_refusal;
        node.reign = history_.reigns.size();
        history_.reigns.push_back(reign);
      }
      if (std::holds_alternative<Follow>(action) || std::holds_alternative<NoLeader>(action))
        EndReign(i);
      if (const auto* follow = std::get_if<Follow>(&action)) Dial(i, node.run, follow->leader);
    }
  }

  void EndReign(size_t i) {
    if (!nodes_[i].reign.has_value()) return;
    history_.reigns[*nodes_[i].reign].until = now_;
    nodes_[i].reign.reset();
  }

  // A follower dials its leader again and again; a dead one's address refuses.
  void Dial(size_t i, uint64_t run, const Leadership& leader) {
    At(absl::Milliseconds(200), [this, i, run, leader] {
      if (!Runs(i, run) || nodes_[i].election->leader() != leader) return;
      const size_t at = (leader.incarnation.value - 1) / 1000;
      if (!nodes_[at].alive || nodes_[at].run != (leader.incarnation.value - 1) % 1000) {
        nodes_[i].by_refusal = true;
        Do(i, nodes_[i].election->OnRefused(ClockOf(nodes_[i]), leader));
      }
      Dial(i, run, leader);
    });
  }

  void Try(size_t i, uint64_t run, const Campaign& campaign) {
    const bool muted = run_.bug == ElectionBug::kNobodyRuns && now_ >= history_.faults_end;
    if (muted) return;
    const uint64_t seen_ceiling = ceiling_;
    Ask(i, run, StoreCall::kCampaign, [this, i, run, campaign, seen_ceiling] {
      const int64_t actual = key_.has_value() ? key_->value.revision : 0;
      const bool fits = actual == campaign.expected && ceiling_ == seen_ceiling &&
                        leases_.count(i * 1000 + run) > 0;
      const bool applied = fits || run_.bug == ElectionBug::kNoCompare;
      history_.writes.push_back({i * 1000 + run, campaign.expected, actual, applied});
      EpochBlock block;
      if (applied) {
        if (run_.bug != ElectionBug::kSameRevision || revision_ < 3) ++revision_;
        block.floor = std::max(ceiling_, campaign.min_floor);
        block.ceiling = block.floor + kEpochsPerLeadership;
        if (run_.bug != ElectionBug::kSameBlock) ceiling_ = block.ceiling;
        Leadership value{absl::StrCat("n", i), "address", Incarnation{i * 1000 + run + 1},
                         revision_};
        if (run_.bug == ElectionBug::kSameBlock) block = {0, kEpochsPerLeadership};
        key_ = Key{value, i * 1000 + run};
      }
      return std::function<void()>([this, i, applied, block, revision = revision_] {
        OneNode& node = nodes_[i];
        if (applied)
          Do(i, node.election->OnWon(ClockOf(node), revision, block));
        else
          Do(i, node.election->OnLost(ClockOf(node)));
      });
    });
  }

  void Fault() {
    const size_t i = static_cast<size_t>(Pick(kNodes));
    switch (Pick(10)) {
      case 0:
        if (nodes_[i].alive) Crash(i);
        break;
      case 1:
      case 2:
        if (!nodes_[i].alive) StartNode(i);
        break;
      case 3:
        down_ = Pick(2) == 0;
        break;
      case 4:
        hard_ = !hard_;
        break;
      case 5:
        if (run_.data_loss && Pick(4) == 0) {
          key_.reset();
          leases_.clear();
          ceiling_ = 0;
          revision_ = 1;
        }
        break;
      default:
        down_ = false;
    }
  }

  void EndFaults() {
    down_ = hard_ = false;
    for (size_t i = 0; i < kNodes; ++i) {
      if (!nodes_[i].alive) StartNode(i);
    }
  }

  const ElectionRun run_;
  std::mt19937_64 rng_;
  const absl::Time start_ = absl::FromUnixSeconds(1000);
  absl::Time now_ = start_;
  std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> queue_;
  uint64_t next_event_ = 1;
  OneNode nodes_[kNodes];
  std::optional<Key> key_;
  std::map<uint64_t, absl::Time> leases_;
  int64_t revision_ = 1;
  uint64_t ceiling_ = 0;
  bool down_ = false;
  bool hard_ = false;
  ElectionHistory history_;
};

}  // namespace epd
