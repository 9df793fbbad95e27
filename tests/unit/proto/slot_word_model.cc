#include "tests/unit/proto/slot_word_model.h"

#include <atomic>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "proto/epd/v1/slot_word.h"

namespace epd {
namespace {

constexpr uint32_t kGood = 0;
constexpr uint32_t kAborted = 10;

enum ClientPc : uint8_t {
  kArm,
  kMark,
  kLookAsleep,
  kRing,
  kLook,
  kSetSleeping,
  kFenceSleeping,
  kLookAgain,
  kFutexWait,
  kBlocked,
  kTakeAnswer,
  kClientDone,
};

enum WorkerPc : uint8_t {
  kScan,
  kCheckArmed,
  kClaim,
  kCheckEpoch,
  kEarlyLookSleeping,
  kAnswer,
  kLookSleeping,
  kWake,
  kSetAsleep,
  kFenceAsleep,
  kRescan,
  kEpoll,
  kDead,    // Not reaped yet.
  kReaped,  // epd has looked at the slot; the replacement may start.
};

// An epd, or a watchdog, on its way through one poison.
struct Poisoner {
  uint64_t seen;
  uint8_t pc;       // 0 idle, 1 has read the word, 2 has to wake.
  uint8_t saw_use;  // Of `seen`.
};

// Plain bytes: compared and hashed as they are.
struct State {
  uint64_t word;
  uint32_t next_id;
  uint32_t claim;        // Of the worker.
  uint32_t ghost_claim;  // 0: no ghost.
  uint8_t submission;    // Number of the client's open or next use.
  uint8_t open;          // Between arming and the end of the use.
  uint8_t client;
  uint8_t worker;
  uint8_t claimed_use;  // Of the worker's claim.
  uint8_t ghost_use;
  uint8_t ghost_pc;  // 0 answers next, 1 has checked the epoch.
  uint8_t epoch;
  uint8_t worker_epoch;
  uint8_t ghost_epoch;
  uint8_t armed;
  uint8_t asleep;
  uint8_t asleep_buffered;
  uint8_t sleeping;
  uint8_t sleeping_buffered;
  uint8_t eventfd;
  uint8_t early_sleeping;  // What the worker saw, with kWakeBeforeAnswer.
  uint8_t early_asleep;    // What the client saw, with kRingBeforeArm.
  uint8_t deaths_left;
  uint8_t poisons_left;
  uint8_t unused[4];
  Poisoner poisoners[2];  // epd, watchdog.
};
static_assert(sizeof(Poisoner) == 16 && sizeof(State) == 80);

struct BytesHash {
  size_t operator()(const State& s) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&s), sizeof s});
  }
};
struct BytesEqual {
  bool operator()(const State& a, const State& b) const {
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
};

class Walk {
 public:
  Walk(int num_uses, PlantedBug bug) : num_uses_(num_uses), bug_(bug) {}
  WalkResult Run(int num_poisons);

 private:
  bool Is(PlantedBug bug) const { return bug_ == bug; }
  void Visit(const State& state);
  void Violate(const std::string& what) {
    if (result_.violation.empty()) result_.violation = what;
  }

  void StepClient(State s);
  void StepWorker(State s);
  void StepWorkerSleep(State s);
  void WorkerAnswers(State s);
  void StepDeath(State s);
  void StepGhost(State s);
  void StepPoisoner(State s, int which, bool because_of_death);
  void DrainBuffers(const State& s);
  void CheckEnd(const State& s);

  // The real transition on a word of its own.
  template <typename Transition>
  static bool Apply(State& s, Transition transition) {
    std::atomic<uint64_t> word(s.word);
    const bool done = transition(word);
    s.word = word.load();
    return done;
  }
  // Somebody ended the open use; `use` is the one it was meant for.
  void Ended(State& s, int submission, const char* who) {
    if (s.open == 0 || s.submission != submission) {
      Violate(std::string(who) + " ended use " + std::to_string(s.submission) +
              (s.open ? "" : " (closed)") + ", it meant use " + std::to_string(submission));
    }
    s.open = 0;
  }
  static void FutexWake(State& s) {
    if (s.client == kBlocked) s.client = kLook;
  }

  const int num_uses_;
  const PlantedBug bug_;
  WalkResult result_;
  std::unordered_set<State, BytesHash, BytesEqual> seen_;
  std::vector<State> todo_;
  bool moved_ = false;
};

void Walk::Visit(const State& state) {
  moved_ = true;
  if (seen_.insert(state).second) todo_.push_back(state);
}

void Walk::StepClient(State s) {
  const bool done = shm::Done(s.word) != 0;
  switch (s.client) {
    case kArm: {
      if (Is(PlantedBug::kRingBeforeArm)) s.early_asleep = s.asleep;
      s.sleeping = s.sleeping_buffered = 0;
      if (shm::Ready(s.word) != 0) Violate("the client arms an open word");
      Apply(s, [](auto& word) { return shm::Arm(word), true; });
      s.open = 1;
      s.client = kMark;
      break;
    }
    case kMark:
      s.armed = 1;
      s.client = kLookAsleep;
      break;
    case kLookAsleep: {
      const bool asleep = Is(PlantedBug::kRingBeforeArm) ? s.early_asleep : s.asleep;
      s.client = asleep ? kRing : kLook;
      break;
    }
    case kRing:
      s.eventfd = 1;
      s.client = kLook;
      break;
    case kLook:
      s.client = done ? kTakeAnswer : kSetSleeping;
      break;
    case kSetSleeping:
      s.sleeping_buffered = 1;
      s.client = Is(PlantedBug::kNoFenceSleeping) ? kLookAgain : kFenceSleeping;
      break;
    case kFenceSleeping:
      if (s.sleeping_buffered) s.sleeping = 1;
      s.sleeping_buffered = 0;
      s.client = kLookAgain;
      break;
    case kLookAgain:
      s.client = done ? kTakeAnswer : kFutexWait;
      break;
    case kFutexWait:  // The kernel compares and sleeps in one step.
      s.client = done ? kTakeAnswer : kBlocked;
      break;
    case kTakeAnswer:
      if (s.open) Violate("the client took an answer of an open use");
      s.sleeping = s.sleeping_buffered = 0;
      ++s.submission;
      s.client = s.submission >= num_uses_ ? kClientDone : kArm;
      break;
    default:
      return;
  }
  Visit(s);
}

void Walk::WorkerAnswers(State s) {
  const bool compares = !Is(PlantedBug::kAnswerWithoutCompare) && !Is(PlantedBug::kSeparateEpoch);
  const uint32_t id = s.claim;
  const bool ended = Apply(s, [&](auto& word) {
    if (compares) return shm::Answer(word, id, kGood);
    word.store(shm::Answered(kGood));
    return true;
  });
  if (ended) Ended(s, s.claimed_use, "the worker");
  s.claim = 0;
  s.worker = ended ? kLookSleeping : kScan;
  Visit(s);
}

void Walk::StepWorker(State s) {
  switch (s.worker) {
    case kScan:
      s.worker = s.armed ? kCheckArmed : kSetAsleep;
      s.armed = 0;
      break;
    case kCheckArmed:
      s.worker = s.word == shm::kArmed ? kClaim : kScan;
      break;
    case kClaim: {
      const uint32_t id = s.next_id++;
      if (Apply(s, [&](auto& word) { return shm::Claim(word, id); })) {
        if (!s.open) Violate("the worker claimed a closed use");
        s.claim = id;
        s.claimed_use = s.submission;
        s.worker = Is(PlantedBug::kSeparateEpoch)      ? kCheckEpoch
                   : Is(PlantedBug::kWakeBeforeAnswer) ? kEarlyLookSleeping
                                                       : kAnswer;
      } else {
        s.worker = kScan;
      }
      break;
    }
    case kCheckEpoch:
      s.worker = s.epoch == s.worker_epoch ? kAnswer : kScan;
      break;
    case kEarlyLookSleeping:
      s.early_sleeping = s.sleeping;
      s.worker = kAnswer;
      break;
    case kAnswer:
      return WorkerAnswers(s);
    case kLookSleeping: {
      const bool sleeping = Is(PlantedBug::kWakeBeforeAnswer) ? s.early_sleeping : s.sleeping;
      s.worker = sleeping ? kWake : kScan;
      break;
    }
    case kWake:
      FutexWake(s);
      s.worker = kScan;
      break;
    default:
      return StepWorkerSleep(s);
  }
  Visit(s);
}

void Walk::StepWorkerSleep(State s) {
  switch (s.worker) {
    case kSetAsleep:
      s.asleep_buffered = 1;
      s.worker = Is(PlantedBug::kNoFenceAsleep) ? kRescan : kFenceAsleep;
      break;
    case kFenceAsleep:
      if (s.asleep_buffered) s.asleep = 1;
      s.asleep_buffered = 0;
      s.worker = Is(PlantedBug::kNoRescan) ? kEpoll : kRescan;
      break;
    case kRescan:
      s.worker = s.armed ? kCheckArmed : kEpoll;
      if (s.armed) s.asleep = s.asleep_buffered = 0;
      s.armed = 0;
      break;
    case kEpoll:
      if (!s.eventfd) return;
      s.eventfd = 0;
      s.asleep = s.asleep_buffered = 0;
      s.worker = kScan;
      break;
    default:
      return;
  }
  Visit(s);
}

// SIGKILL at any step. What it held lives on in a ghost; epd reaps, answers for it, replaces it.
void Walk::StepDeath(State s) {
  if (s.worker == kDead) {
    if (Is(PlantedBug::kNoPoisonAfterDeath)) {
      s.worker = kReaped;
      Visit(s);
    } else {
      StepPoisoner(s, 0, /*because_of_death=*/true);
    }
    return;
  }
  if (s.worker == kReaped) {
    s.worker = kCheckArmed;  // The replacement looks at every slot once, marked or not.
    s.worker_epoch = s.epoch;
    if (Is(PlantedBug::kReusedIds)) s.next_id = shm::kFirstClaimId;
    Visit(s);
    return;
  }
  if (s.deaths_left == 0) return;
  --s.deaths_left;
  if (s.claim != 0) {
    s.ghost_claim = s.claim;
    s.ghost_use = s.claimed_use;
    s.ghost_pc = s.worker == kAnswer ? 1 : 0;
    s.ghost_epoch = s.worker_epoch;
  }
  s.claim = 0;
  s.asleep_buffered = 0;
  ++s.epoch;
  s.worker = kDead;
  Visit(s);
}

void Walk::StepGhost(State s) {
  if (s.ghost_claim == 0) return;
  if (Is(PlantedBug::kSeparateEpoch) && s.ghost_pc == 0) {
    if (s.epoch == s.ghost_epoch) {
      s.ghost_pc = 1;
    } else {
      s.ghost_claim = 0;
    }
    Visit(s);
    return;
  }
  const bool compares = !Is(PlantedBug::kAnswerWithoutCompare) && !Is(PlantedBug::kSeparateEpoch);
  const uint32_t id = s.ghost_claim;
  const bool ended = Apply(s, [&](auto& word) {
    if (compares) return shm::Answer(word, id, kGood);
    word.store(shm::Answered(kGood));
    return true;
  });
  if (ended) {
    Ended(s, s.ghost_use, "the ghost");
    FutexWake(s);
  }
  s.ghost_claim = 0;
  Visit(s);
}

// epd (0) and the client's watchdog (1): read, compare and swap, wake.
void Walk::StepPoisoner(State s, int which, bool because_of_death) {
  Poisoner& p = s.poisoners[which];
  if (p.pc == 0) {
    if (!because_of_death && s.poisons_left == 0) return;
    if (shm::Ready(s.word) == 0) {
      if (!because_of_death) return;
      // The worker may have died between its answer and the wake.
      if (!Is(PlantedBug::kNoWakeAfterDeath)) FutexWake(s);
      s.worker = kReaped;
      Visit(s);
      return;
    }
    if (!because_of_death) --s.poisons_left;
    p.seen = s.word;
    p.saw_use = s.submission;
    p.pc = 1;
  } else if (p.pc == 1) {
    const uint64_t seen = p.seen;
    const bool ended = Apply(s, [&](auto& word) {
      if (!Is(PlantedBug::kPoisonWithoutCompare)) return shm::Poison(word, seen, kAborted);
      word.store(shm::Answered(kAborted));
      return true;
    });
    if (ended) Ended(s, seen == shm::kArmed && s.open ? s.submission : p.saw_use, "a poison");
    p.pc = ended ? 2 : 0;
    if (!ended) p = Poisoner{};
  } else {
    FutexWake(s);
    p = Poisoner{};
    if (s.worker == kDead && which == 0) s.worker = kReaped;
  }
  Visit(s);
}

// A buffered store becomes visible whenever the machine likes.
void Walk::DrainBuffers(const State& s) {
  if (s.asleep_buffered) {
    State next = s;
    next.asleep = 1;
    next.asleep_buffered = 0;
    Visit(next);
  }
  if (s.sleeping_buffered) {
    State next = s;
    next.sleeping = 1;
    next.sleeping_buffered = 0;
    Visit(next);
  }
}

void Walk::CheckEnd(const State& s) {
  ++result_.num_ends;
  if (s.client != kClientDone) {
    Violate("nobody moves, and the client waits for the answer of use " +
            std::to_string(s.submission) + (s.open ? " (open)" : " (ended: a wake was lost)"));
  }
}

WalkResult Walk::Run(int num_poisons) {
  State start;
  std::memset(&start, 0, sizeof start);
  start.next_id = shm::kFirstClaimId;
  start.deaths_left = 1;
  start.poisons_left = static_cast<uint8_t>(num_poisons);
  Visit(start);
  while (!todo_.empty() && result_.violation.empty()) {
    const State s = todo_.back();
    todo_.pop_back();
    moved_ = false;
    StepClient(s);
    StepWorker(s);
    StepGhost(s);
    StepPoisoner(s, 1, /*because_of_death=*/false);
    if (s.worker != kDead) StepPoisoner(s, 0, /*because_of_death=*/false);
    DrainBuffers(s);
    // A death is a mishap, not a way out: a state that only it leads out of is an end, too.
    const bool can_move = moved_ || s.worker == kDead || s.worker == kReaped;
    StepDeath(s);
    if (!can_move) CheckEnd(s);
  }
  result_.num_states = seen_.size();
  return result_;
}

}  // namespace

WalkResult WalkSlotWord(int num_uses, int num_poisons, PlantedBug bug) {
  return Walk(num_uses, bug).Run(num_poisons);
}

}  // namespace epd
