#include "tests/unit/proto/direct_area_model.h"

#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "proto/epd/v1/direct_area.h"

namespace epd {
namespace {

using shm::DirectState;

constexpr int kMaxRanks = 3;
constexpr uint8_t kOld = 0;  // The generation in which the ranks were told to publish,
constexpr uint8_t kNew = 1;  // ... and what follows it.

// Where a rank is.
enum class At : uint8_t {
  kBegin,     // Its rows stand in its eager buffer.
  kLook,      // Has published, and looks at its peers.
  kHandOver,  // Is about to say so.
  kAnnounce,  // Is about to arm.
  kSayLate,   // kHandsOverAfterAnnounce.
  kWait,      // For the answer.
  kLookAgain,
  kRead,   // Rows of peer `next`.
  kCheck,  // ... whether their record still stands.
  kWithdraw,
  kEnded,
  kReused,  // Its eager buffer holds other rows.
};

enum class Outcome : uint8_t { kNone, kGood, kGoodByWorker, kFailed, kVoid };
enum class Answer : uint8_t { kIdle, kArmed, kClaimed, kMet, kGood, kFailed };

struct RankState {
  At at = At::kBegin;
  Outcome outcome = Outcome::kNone;
  Answer slot = Answer::kIdle;
  uint8_t generation = kOld;  // Of the gate.
  uint8_t count = 0;
  uint8_t state = 0;       // Of the record, a DirectState.
  uint8_t call = kOld;     // The generation that the record's call says.
  uint8_t seen = 0;        // Bit per peer.
  uint8_t handed = 0;      // A peer was seen that has handed over.
  uint8_t next = 0;        // Peer that is looked at.
  uint8_t wrong = 0;       // Rows that were read are not this call's.
  uint8_t other_rows = 0;  // The eager buffer holds other rows.
  uint8_t published = 0;   // The announce says so.
  uint8_t dead = 0;
};

enum class WorkerAt : uint8_t { kIdle, kLook, kEnd, kAnswerFailed };

struct WorkerState {
  WorkerAt at = WorkerAt::kIdle;
  uint8_t looks_for = 0;  // Rank whose announce it has taken.
  uint8_t next = 0;       // Rank that is looked at, ended or answered.
  uint8_t all = 0;        // All ranks looked at have published.
  uint8_t failed = 0;     // The call has failed here.
  uint8_t decided = 0;    // Good, by announces.
  uint8_t dead = 0;
};

enum class EpdAt : uint8_t { kWatches, kEnd, kAnswers };

struct State {
  std::array<RankState, kMaxRanks> ranks;
  WorkerState worker;
  EpdAt epd = EpdAt::kWatches;
  uint8_t epd_next = 0;
  uint8_t rank_died = 0;
};
static_assert(std::has_unique_object_representations_v<State>);

class Walk {
 public:
  explicit Walk(const DirectWalk& walk) : walk_(walk), n_(walk.num_ranks) {
    for (auto& area : areas_) area = std::make_unique<shm::DirectArea>();
  }

  DirectWalkResult Run() {
    Push(State{});
    while (!todo_.empty() && result_.violation.empty()) {
      const State state = todo_.back();
      todo_.pop_back();
      const size_t before = steps_;
      Expand(state);
      if (steps_ == before) End(state);
    }
    result_.num_states = seen_.size();
    return result_;
  }

 private:
  bool Has(DirectBug bug) const { return walk_.bug == bug; }
  bool IsHostile(int r) const { return walk_.hostile && r == n_ - 1; }

  void Push(const State& state) {
    ++steps_;
    std::string key(reinterpret_cast<const char*>(&state), sizeof state);
    if (!seen_.insert(std::move(key)).second) return;
    Check(state);
    todo_.push_back(state);
  }

  void Fail(const std::string& what, const State& state) {
    if (!result_.violation.empty()) return;
    result_.violation = what + ":";
    for (int r = 0; r < n_; ++r) {
      const RankState& rank = state.ranks[r];
      result_.violation += " rank " + std::to_string(r) + " at " + std::to_string(int(rank.at)) +
                           " outcome " + std::to_string(int(rank.outcome)) + " slot " +
                           std::to_string(int(rank.slot)) + " gate " +
                           std::to_string(rank.generation) + "/" + std::to_string(rank.count) +
                           " record " + std::to_string(rank.state) + ";";
    }
    result_.violation += " worker at " + std::to_string(int(state.worker.at)) + " failed " +
                         std::to_string(state.worker.failed) + " dead " +
                         std::to_string(state.worker.dead) + " epd " +
                         std::to_string(int(state.epd));
  }

  static bool Good(Outcome o) { return o == Outcome::kGood || o == Outcome::kGoodByWorker; }

  void Check(const State& state) {
    bool good = false;
    bool failed = false;
    for (int r = 0; r < n_; ++r) {
      if (IsHostile(r)) continue;
      const RankState& rank = state.ranks[r];
      good = good || Good(rank.outcome);
      failed = failed || rank.outcome == Outcome::kFailed;
      if (rank.wrong != 0 && Good(rank.outcome)) Fail("wrong rows with a good outcome", state);
      // What was good for somebody may be void for nobody.
      failed = failed || rank.outcome == Outcome::kVoid;
    }
    if (good && failed && !walk_.hostile) Fail("the outcome is not one", state);
  }

  void End(const State& state) {
    ++result_.num_ends;
    for (int r = 0; r < n_; ++r) {
      if (state.ranks[r].outcome == Outcome::kGood) ++result_.num_good;
      if (state.ranks[r].outcome == Outcome::kFailed) ++result_.num_failed;
    }
    // A hostile rank that says nothing is late; deadlines are `worker_fails`.
    if (walk_.hostile) return;
    for (int r = 0; r < n_; ++r) {
      const RankState& rank = state.ranks[r];
      if (rank.dead == 0 && rank.outcome == Outcome::kNone) Fail("a rank waits for ever", state);
    }
  }

  // ---- real words ----

  shm::DirectArea& Area(const State& state, int r) {
    const RankState& rank = state.ranks[r];
    shm::DirectArea& area = *areas_[r];
    area.gate.store(shm::DirectGate(rank.generation, rank.count));
    shm::DirectRecord& record = area.records[1];
    record.word.store(shm::RecordWord(1, static_cast<DirectState>(rank.state)));
    record.call = CallOf(rank.call);
    return area;
  }
  void TakeGate(State& state, int r) {
    const uint64_t gate = areas_[r]->gate.load();
    state.ranks[r].generation = static_cast<uint8_t>(shm::GateGeneration(gate));
    state.ranks[r].count = static_cast<uint8_t>(shm::GateCount(gate));
  }
  shm::DirectCall CallOf(uint8_t generation) const {
    shm::DirectCall call;
    call.execution = 7;
    call.generation = Has(DirectBug::kGenerationNotCompared) ? 0 : generation;
    return call;
  }
  bool Finds(const State& state, int peer, uint8_t generation) {
    return shm::FindDirect(Area(state, peer), CallOf(generation)) != 0;
  }
  bool StandsStill(const State& state, int peer) {
    return shm::Stands(Area(state, peer).records[1].word.load(), 1);
  }
  bool PeersHaveRead(const State& state, int r) {
    for (int p = 0; p < n_; ++p) {
      if (p == r || state.ranks[p].dead != 0) continue;
      if (!shm::HasRead(Area(state, p).records[1].word.load(), 1)) return false;
    }
    return true;
  }

  // ---- a rank ----

  int NextPeer(int r, int from) const {
    while (from < n_ && from == r) ++from;
    return from;
  }

  void ExpandRank(const State& state, int r) {
    const RankState& now = state.ranks[r];
    if (now.dead != 0) return;
    const auto step = [&](const std::function<void(State&, RankState&)>& change) {
      State next = state;
      change(next, next.ranks[r]);
      Push(next);
    };
    if (IsHostile(r)) return ExpandHostile(step);
    if (walk_.rank_dies && state.rank_died == 0 && now.at != At::kReused && now.at != At::kEnded) {
      step([](State& s, RankState& self) { self.dead = s.rank_died = 1; });
    }
    switch (now.at) {
      case At::kBegin:
        return step([&](State& s, RankState& self) { Publish(s, r, self); });
      case At::kLook:
        // It may lose its patience at any time.
        step([](State&, RankState& self) { self.at = At::kHandOver; });
        for (int peer = 0; peer < n_; ++peer) {
          if (peer == r || (now.seen >> peer & 1) != 0 || !Finds(state, peer, kOld)) continue;
          step([&](State& s, RankState& self) { SeePeer(s, peer, self); });
        }
        return;
      case At::kHandOver:
        return step([&](State&, RankState& self) {
          if (Has(DirectBug::kHandsOverAfterAnnounce)) {
            self.slot = Answer::kArmed;
            self.published = 1;
            self.at = At::kSayLate;
            return;
          }
          self.state = static_cast<uint8_t>(DirectState::kHandedOver);
          self.seen = self.handed = 0;
          self.at = At::kAnnounce;
        });
      case At::kAnnounce:
        return step([](State&, RankState& self) {
          self.slot = Answer::kArmed;
          self.at = At::kWait;
        });
      case At::kSayLate:
        return step([](State&, RankState& self) {
          self.state = static_cast<uint8_t>(DirectState::kHandedOver);
          self.at = At::kWait;
        });
      case At::kWait:
        return TakeAnswer(now, step);
      case At::kLookAgain:
        return step([&](State& s, RankState& self) {
          const int peer = NextPeer(r, self.next);
          if (peer < n_ && !Finds(s, peer, kOld)) {
            self.at = At::kWithdraw;
          } else if (peer < n_) {
            self.next = static_cast<uint8_t>(peer + 1);
          }
          if (self.at == At::kLookAgain && NextPeer(r, self.next) >= n_) BeginRead(self);
        });
      case At::kRead:
        return step([&](State& s, RankState& self) {
          const int peer = NextPeer(r, self.next);
          if (peer >= n_) {
            self.at = At::kCheck;
            self.next = 0;
            return;
          }
          if (s.ranks[peer].other_rows != 0 && !IsHostile(peer)) self.wrong = 1;
          self.next = static_cast<uint8_t>(peer + 1);
        });
      case At::kCheck:
        return step([&](State& s, RankState& self) {
          const int peer = NextPeer(r, self.next);
          self.next = static_cast<uint8_t>(peer + 1);
          if (peer >= n_) {
            self.state = static_cast<uint8_t>(DirectState::kDone);
            self.outcome = Outcome::kGood;
            self.at = At::kEnded;
            return;
          }
          if (Has(DirectBug::kNoLookAfterRead) || StandsStill(s, peer)) return;
          self.state = static_cast<uint8_t>(DirectState::kWithdrawn);
          self.outcome = Outcome::kVoid;
          self.at = At::kEnded;
        });
      case At::kWithdraw:
        return step([&](State&, RankState& self) {
          if (Has(DirectBug::kWritesBeforeWithdrawn) && self.other_rows == 0) {
            self.other_rows = 1;
            return;
          }
          if (self.published != 0) self.state = static_cast<uint8_t>(DirectState::kWithdrawn);
          self.outcome = Outcome::kFailed;
          self.at = At::kEnded;
        });
      case At::kEnded: {
        const bool free = now.outcome != Outcome::kGood || Has(DirectBug::kWritesBeforeRead) ||
                          PeersHaveRead(state, r);
        if (!free || now.outcome == Outcome::kGoodByWorker) return;
        return step([](State&, RankState& self) {
          self.other_rows = 1;
          self.at = At::kReused;
        });
      }
      case At::kReused:
        return;
    }
  }

  void Publish(State& s, int r, RankState& self) {
    const uint8_t generation =
        Has(DirectBug::kGenerationNotCompared) ? self.generation : uint8_t{kOld};
    self.call = generation;
    self.state = static_cast<uint8_t>(DirectState::kPublished);
    std::atomic<uint64_t>& gate = Area(s, r).gate;
    bool done = true;
    if (Has(DirectBug::kPublishWithoutCompare)) {
      gate.store(shm::DirectGate(kOld, 1));
    } else {
      done = shm::PublishDirect(gate, generation, 0);
    }
    TakeGate(s, r);
    if (!done) self.state = static_cast<uint8_t>(DirectState::kWithdrawn);
    self.published = done ? 1 : 0;
    self.at = done ? At::kLook : At::kAnnounce;
  }

  void SeePeer(State& s, int peer, RankState& self) {
    self.seen = static_cast<uint8_t>(self.seen | 1 << peer);
    if (shm::IsHandedOver(Area(s, peer).records[1].word.load())) self.handed = 1;
    if (std::popcount(self.seen) < n_ - 1) return;
    if (self.handed != 0 && !Has(DirectBug::kIgnoresHandedOver)) {
      self.at = At::kHandOver;
    } else {
      BeginRead(self);
    }
  }

  static void BeginRead(RankState& self) {
    self.at = At::kRead;
    self.seen = self.handed = self.next = 0;
  }

  template <typename Step>
  void TakeAnswer(const RankState& now, const Step& step) {
    if (now.slot == Answer::kMet) {
      step([](State&, RankState& self) { BeginRead(self); });
    } else if (now.slot == Answer::kGood) {
      step([](State&, RankState& self) {
        self.state = static_cast<uint8_t>(DirectState::kWithdrawn);
        self.outcome = Outcome::kGoodByWorker;
        self.at = At::kEnded;
      });
    } else if (now.slot == Answer::kFailed) {
      step([&](State&, RankState& self) {
        const bool looks = self.published != 0 && !Has(DirectBug::kNoSecondLook);
        self.at = looks ? At::kLookAgain : At::kWithdraw;
        self.next = 0;
      });
    }
  }

  template <typename Step>
  void ExpandHostile(const Step& step) {
    for (uint8_t generation : {kOld, kNew}) {
      for (uint8_t count : {0, 1}) {
        step([&](State&, RankState& self) {
          self.generation = generation;
          self.count = count;
        });
      }
      step([&](State&, RankState& self) { self.call = generation; });
    }
    for (uint8_t state = 0; state <= 4; ++state) {
      step([&](State&, RankState& self) { self.state = state; });
    }
    step([](State&, RankState& self) {
      self.at = At::kWait;
      self.published = 1;
      if (self.slot == Answer::kIdle) self.slot = Answer::kArmed;
    });
  }

  // ---- the worker, also as a ghost ----

  // A rank that has died has no open submission any more.
  static bool Open(const RankState& rank) {
    return rank.dead == 0 && (rank.slot == Answer::kArmed || rank.slot == Answer::kClaimed);
  }
  static void Reply(RankState& rank, Answer answer) {
    if (rank.slot == Answer::kClaimed) rank.slot = answer;
  }

  void ExpandWorker(const State& state) {
    const WorkerState& now = state.worker;
    const auto step = [&](const std::function<void(State&, WorkerState&)>& change) {
      State next = state;
      change(next, next.worker);
      Push(next);
    };
    if (walk_.worker_dies && now.dead == 0) step([](State&, WorkerState& w) { w.dead = 1; });
    switch (now.at) {
      case WorkerAt::kIdle:
        // A ghost takes nothing new: what it has begun goes on.
        if (now.dead != 0) return;
        for (int r = 0; r < n_; ++r) {
          if (state.ranks[r].slot != Answer::kArmed || state.ranks[r].dead != 0) continue;
          step([&](State& s, WorkerState& w) { Claim(s, w, r); });
        }
        if (walk_.worker_fails && now.failed == 0 && now.decided == 0) step(BeginFailure());
        if (state.rank_died != 0 && now.failed == 0 && now.decided == 0) step(BeginFailure());
        return;
      case WorkerAt::kLook:
        return step([&](State& s, WorkerState& w) {
          const int r = w.next++;
          if (!Finds(s, r, s.ranks[w.looks_for].call)) w.all = 0;
          if (w.next == n_) Looked(s, w);
        });
      case WorkerAt::kEnd:
        return step([&](State& s, WorkerState& w) {
          const bool first = Has(DirectBug::kAnswerBeforeEnding);
          const int r = w.next++;
          if (!Has(DirectBug::kEndAnnouncedOnly) || s.ranks[r].slot != Answer::kIdle) {
            shm::EndDirect(Area(s, r).gate, kNew);
            TakeGate(s, r);
          }
          if (w.next < n_) return;
          w.next = 0;
          w.at = first ? WorkerAt::kIdle : WorkerAt::kAnswerFailed;
        });
      case WorkerAt::kAnswerFailed:
        return step([&](State& s, WorkerState& w) {
          Reply(s.ranks[w.next++], Answer::kFailed);
          if (w.next < n_) return;
          w.next = 0;
          w.at = Has(DirectBug::kAnswerBeforeEnding) ? WorkerAt::kEnd : WorkerAt::kIdle;
        });
    }
  }

  std::function<void(State&, WorkerState&)> BeginFailure() const {
    const WorkerAt first =
        Has(DirectBug::kAnswerBeforeEnding) ? WorkerAt::kAnswerFailed : WorkerAt::kEnd;
    return [first](State&, WorkerState& w) {
      w.failed = 1;
      w.next = 0;
      w.at = first;
    };
  }

  void Claim(State& s, WorkerState& w, int r) {
    s.ranks[r].slot = Answer::kClaimed;
    w.looks_for = static_cast<uint8_t>(r);
    w.next = 0;
    w.all = 1;
    if (s.ranks[r].published != 0 && !Has(DirectBug::kNoLookAtAnnounce)) {
      w.at = WorkerAt::kLook;
    } else {
      w.all = 0;
      Looked(s, w);
    }
  }

  void Looked(State& s, WorkerState& w) {
    w.next = 0;
    w.at = WorkerAt::kIdle;
    if (w.all != 0) {
      for (int r = 0; r < n_; ++r) {
        if (s.ranks[r].published != 0) Reply(s.ranks[r], Answer::kMet);
      }
      return;
    }
    if (w.failed != 0) return Reply(s.ranks[w.looks_for], Answer::kFailed);
    if (w.decided != 0) return Reply(s.ranks[w.looks_for], Answer::kGood);
    for (int r = 0; r < n_; ++r) {
      if (s.ranks[r].slot != Answer::kClaimed || s.ranks[r].dead != 0) return;
    }
    // All have announced: good, in a record that epd reads (not modelled), then the answers.
    if (w.dead != 0) return;
    w.decided = 1;
    for (int r = 0; r < n_; ++r) Reply(s.ranks[r], Answer::kGood);
  }

  // ---- epd, once the worker is dead ----

  void ExpandEpd(const State& state) {
    if (state.worker.dead == 0) return;
    State next = state;
    switch (state.epd) {
      case EpdAt::kWatches:
        next.epd = Has(DirectBug::kNoEndAfterDeath) ? EpdAt::kAnswers : EpdAt::kEnd;
        return Push(next);
      case EpdAt::kEnd:
        shm::EndDirect(Area(next, next.epd_next).gate, kNew);
        TakeGate(next, next.epd_next);
        if (++next.epd_next == n_) next.epd = EpdAt::kAnswers;
        return Push(next);
      case EpdAt::kAnswers:
        for (int r = 0; r < n_; ++r) {
          if (!Open(state.ranks[r])) continue;
          next = state;
          next.ranks[r].slot = Answer::kFailed;
          Push(next);
        }
        return;
    }
  }

  void Expand(const State& state) {
    for (int r = 0; r < n_; ++r) ExpandRank(state, r);
    ExpandWorker(state);
    ExpandEpd(state);
  }

  const DirectWalk walk_;
  const int n_;
  std::array<std::unique_ptr<shm::DirectArea>, kMaxRanks> areas_;
  std::unordered_set<std::string> seen_;
  std::vector<State> todo_;
  size_t steps_ = 0;
  DirectWalkResult result_;
};

}  // namespace

DirectWalkResult WalkDirectArea(const DirectWalk& walk) { return Walk(walk).Run(); }

}  // namespace epd
