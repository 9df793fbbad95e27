// Goal: one site on two ranks, called twice, with a worker that dies once and whose submissions epd answers: in every order of
// the streams' steps, the worker's claims and answers, the end of a move, the death and the mapping of new staging no
// invariant is broken and nobody waits for ever; and each mistake that is planted breaks the one that it names.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/worker/world/streams.h"

namespace epd::world {
namespace {

using Pc = Streams::Pc;
using Stream = Streams::Stream;

constexpr uint32_t kNumRanks = 2;
// In the first no rank ever has too many rows, in the second one has in its first call.
constexpr uint64_t kPlain = 2;
constexpr uint64_t kOverflows = 8;

// Streams end once each has made `num_cycles` calls, and workers are replaced so many times at most.
struct Limits {
  uint64_t num_cycles = 0;
  uint64_t num_replacements = 0;
};
constexpr Limits kACallAndADeath = {.num_cycles = 1, .num_replacements = 1};
constexpr Limits kTwoCalls = {.num_cycles = 2, .num_replacements = 0};
constexpr Limits kTwoCallsAndADeath = {.num_cycles = 2, .num_replacements = 1};

struct Model {
  Executor executor;
  uint64_t seed;
  Limits limits;
  Sabotage sabotage = Sabotage::kNone;
  const char* invariant = "";
};

// What may happen next.
enum class Next : uint8_t {
  kStream0,
  kStream1,
  kClaim,
  kMoveGood,
  kMoveBad,
  kRemap0,
  kRemap1,
  kReplace
};
constexpr int kNumNexts = 8;

struct State {
  explicit State(const Model& model)
      : limits(model.limits),
        world({.engine = {.staging_bytes = uint64_t{1} << 20, .stream_region_bytes = 4096}},
              model.seed, model.sabotage),
        streams(world, {.executor = model.executor, .seed = model.seed}) {
    world.quiet = true;  // Faults are events of their own.
  }

  bool AllEnded() const {
    for (const Stream& stream : streams.streams()) {
      if (stream.cycle < limits.num_cycles) return false;
    }
    return true;
  }

  bool StreamMayGo(const Stream& stream) const {
    const auto& site = stream.sites[0];
    // Calls that the ranks have lost need not be as many on each: who is done goes on for the other.
    const bool enough = stream.cycle >= limits.num_cycles;
    if (stream.pc == Pc::kTell && enough)
      return !AllEnded() && stream.mapped == streams.formation();
    if (stream.pc == Pc::kWaitAnnounce) return shm::Done(site[0].word) >= 1;
    if (stream.pc == Pc::kWaitPublish) return shm::Done(site[1].word) >= 1;
    return true;
  }

  bool May(Next next) const {
    const bool moves = streams.scan() == 0 && !world.worker(0).moves.empty();
    const uint32_t rank = next == Next::kStream1 || next == Next::kRemap1 ? 1 : 0;
    const Stream& stream = streams.streams()[rank];
    switch (next) {
      case Next::kStream0:
      case Next::kStream1:
        return StreamMayGo(stream);
      case Next::kClaim: {
        bool armed = streams.scan() != 0;
        for (uint32_t slot = 0; slot < streams.num_slots(); ++slot) armed |= streams.IsArmed(slot);
        return armed;
      }
      case Next::kMoveGood:
        return moves;
      case Next::kMoveBad:
        return moves && streams.num_replaced() == 0;
      case Next::kRemap0:
      case Next::kRemap1:
        return streams.MayRemap(rank);
      case Next::kReplace:
        return streams.num_replaced() < limits.num_replacements;
    }
    return false;
  }

  // A stream's step that nobody else sees or changes, if there is one: no order of it and others matters.
  std::optional<Next> Unseen() const {
    for (uint32_t r = 0; r < kNumRanks; ++r) {
      const Stream& stream = streams.streams()[r];
      const bool skips_copy = stream.pc == Pc::kCopy && shm::Done(stream.sites[0][0].word) > 1;
      const bool skips_read = stream.pc == Pc::kRead && shm::Done(stream.sites[0][1].word) > 1;
      const bool tells = stream.pc == Pc::kTell && stream.cycle < limits.num_cycles;
      if (!streams.touches(r) && (tells || skips_copy || skips_read)) return Next(r);
    }
    return std::nullopt;
  }

  void Happen(Next next) {
    switch (next) {
      case Next::kStream0:
      case Next::kStream1:
        streams.Go(next == Next::kStream1 ? 1 : 0);
        break;
      case Next::kClaim:
        // Slots that are not armed are passed over: as if they had been looked at when this one is.
        while (!streams.IsArmed(streams.scan()) && streams.scan() + 1 < streams.num_slots())
          streams.ScanNext();
        streams.ScanNext();
        break;
      case Next::kMoveGood:
      case Next::kMoveBad:
        streams.FinishMove(next == Next::kMoveGood);
        break;
      case Next::kRemap0:
      case Next::kRemap1:
        streams.Remap(next == Next::kRemap1 ? 1 : 0);
        break;
      case Next::kReplace:
        streams.Replace();
        break;
    }
    world.StepEnds();
  }

  // Two states with the same one go on alike. The engine follows from what it has claimed of each rank, in which order
  // that rank's streams armed it, and from what its operations wait for.
  std::string Fingerprint() const {
    const Worker& worker = world.worker(0);
    std::string text =
        absl::StrCat(streams.scan(), "|", streams.formation(), "|", streams.num_replaced(), "|",
                     worker.moves.empty() ? 0 : worker.moves[0].operation.value, "|");
    for (uint32_t r = 0; r < kNumRanks; ++r) {
      const Stream& stream = streams.streams()[r];
      const auto touch = world.touching.find(r);
      const auto staged = world.staged.find({world.groups[0].id, r});
      absl::StrAppend(&text, static_cast<int>(stream.pc), ",", stream.cycle, ",", stream.mapped,
                      ",", touch == world.touching.end() ? 0 : touch->second.operation.value, ",",
                      staged == world.staged.end() ? 0 : staged->second.value, ",",
                      stream.out.value, ",", stream.taken, ";");
      for (const auto& [formation, operation] : stream.stages)
        absl::StrAppend(&text, formation, "=", operation.value, ",");
      for (uint32_t step = 0; step < 3; ++step) {
        const Streams::Slot& slot = stream.sites[0][step];
        const bool claimed = shm::Ready(slot.word) >= shm::kFirstClaimId;
        const auto link = worker.links.find({SessionId(r + 1), step, slot.last_claim});
        absl::StrAppend(&text, claimed ? "c" : absl::StrCat(slot.word), ",",
                        claimed && link != worker.links.end() ? link->second.value : 0, ",",
                        slot.answered_as.value, ",", slot.request.formation, ",",
                        slot.request.announce.demand, ";");
      }
    }
    for (const auto& line : worker.exchange.Snapshot(world.now).operations) {
      absl::StrAppend(&text, line.operation, line.phase, line.key, line.region_bytes, ":");
      for (const Rank rank : line.waiting_for) absl::StrAppend(&text, rank.value, ",");
    }
    return text;
  }

  const Limits limits;
  World world;
  Streams streams;
};

class Walk {
 public:
  explicit Walk(const Model& model) : model_(model) {}

  void Run() {
    Visit({}, *After({}));
    for (size_t state = 0; state < paths_.size() && broken_.empty(); ++state) Expand(state);
    if (broken_.empty() && !EachCanEnd()) broken_ = "progress";
  }
  const std::string& broken() const { return broken_; }
  size_t num_states() const { return paths_.size(); }

 private:
  // The engine cannot be copied: a state is what leads to it.
  std::unique_ptr<State> After(const std::vector<Next>& path) const {
    auto state = std::make_unique<State>(model_);
    for (const Next next : path) state->Happen(next);
    return state;
  }

  // The number of the state.
  size_t Visit(std::vector<Next> path, const State& state) {
    if (broken_.empty()) broken_ = state.world.violation().invariant;
    const auto [number, added] =
        numbers_.try_emplace(std::hash<std::string>()(state.Fingerprint()), paths_.size());
    if (added) {
      paths_.push_back(std::move(path));
      before_.emplace_back();
      if (state.AllEnded()) ended_.push_back(number->second);
    }
    return number->second;
  }

  void Expand(size_t number) {
    const std::vector<Next> path = paths_[number];
    std::unique_ptr<State> state = After(path);
    std::vector<Next> nexts;
    if (const std::optional<Next> unseen = state->Unseen()) {
      nexts.push_back(*unseen);
    } else {
      for (int n = 0; n < kNumNexts; ++n) {
        if (state->May(Next(n))) nexts.push_back(Next(n));
      }
    }
    for (size_t i = 0; i < nexts.size(); ++i) {
      if (i != 0) state = After(path);
      state->Happen(nexts[i]);
      std::vector<Next> longer = path;
      longer.push_back(nexts[i]);
      const size_t to = Visit(std::move(longer), *state);
      const bool fault = nexts[i] == Next::kReplace || nexts[i] == Next::kMoveBad;
      if (!fault) before_[to].push_back(number);
    }
  }

  // Whether the streams can come to their end from each state, without another fault.
  bool EachCanEnd() const {
    std::vector<bool> can(paths_.size());
    std::vector<size_t> open = ended_;
    size_t num_can = 0;
    while (!open.empty()) {
      const size_t state = open.back();
      open.pop_back();
      if (can[state]) continue;
      can[state] = true;
      ++num_can;
      open.insert(open.end(), before_[state].begin(), before_[state].end());
    }
    return num_can == paths_.size();
  }

  const Model model_;
  std::unordered_map<size_t, size_t> numbers_;  // By hash of the fingerprint.
  std::vector<std::vector<Next>> paths_;
  std::vector<std::vector<size_t>> before_;  // States from which one leads here without a fault.
  std::vector<size_t> ended_;
  std::string broken_;
};

class StreamWalk : public ::testing::TestWithParam<Model> {};

TEST_P(StreamWalk, NoInvariantIsBrokenInAnyOrder) {
  Walk walk(GetParam());
  walk.Run();
  EXPECT_EQ(walk.broken(), "");
  EXPECT_GT(walk.num_states(), 500u);
  RecordProperty("states", static_cast<int>(walk.num_states()));
}

// Sanitizers look at memory, not at orders, and make a walk take ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr Limits kMost = kACallAndADeath;
#else
constexpr Limits kMost = kTwoCallsAndADeath;
#endif

INSTANTIATE_TEST_SUITE_P(Executors, StreamWalk,
                         ::testing::Values(Model{Executor::kWorker, kOverflows, kMost},
                                           Model{Executor::kClient, kPlain, kTwoCalls},
                                           Model{Executor::kClient, kOverflows, kACallAndADeath}));

class Planted : public ::testing::TestWithParam<Model> {};

TEST_P(Planted, MistakeBreaksTheInvariantThatItNames) {
  Walk walk(GetParam());
  walk.Run();
  EXPECT_EQ(walk.broken(), GetParam().invariant);
}

Model With(Sabotage sabotage, const Limits& limits, const char* invariant) {
  return {Executor::kWorker, kOverflows, limits, sabotage, invariant};
}
INSTANTIATE_TEST_SUITE_P(Mistakes, Planted,
                         ::testing::Values(With(Sabotage::kAnswerAtOnce, kTwoCalls, "order"),
                                           With(Sabotage::kSpeakUnmapped, kTwoCallsAndADeath,
                                                "mapping"),
                                           With(Sabotage::kLeaveOpen, kTwoCallsAndADeath, "arming"),
                                           With(Sabotage::kForgetStream, kTwoCalls, "progress"),
                                           With(Sabotage::kTellLate, kTwoCalls, "truth"),
                                           Model{Executor::kClient, kPlain, kTwoCalls,
                                                 Sabotage::kStageLate, "exclusion"}));

}  // namespace
}  // namespace epd::world
