// Goal: one site on two ranks, used twice, with a worker that dies once and whose uses epd answers: in every
// order of the streams' steps, the worker's claims and answers, the end of a move, the death and the mapping of
// new staging no rule is broken and nobody waits for ever; and what checks this finds each mistake that is
// planted.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/unit/daemon/worker/stream_world.h"

namespace epd::streams {
namespace {

using Event = StreamWorld::Event;

// One site on each rank: an even seed. In the first no rank ever has too many rows, in the second one has in
// its first use.
constexpr uint64_t kPlain = 2;
constexpr uint64_t kOverflows = 8;

struct Walked {
  size_t num_states = 0;
  std::string violation;
};

class Walk {
 public:
  Walk(uint64_t seed, Executor executor, Sabotage sabotage, StreamWorld::Limits limits)
      : seed_(seed), executor_(executor), sabotage_(sabotage), limits_(limits) {}

  Walked Run() {
    Visit({}, *After({}));
    for (size_t state = 0; state < paths_.size() && walked_.violation.empty(); ++state) {
      Expand(state);
    }
    walked_.num_states = paths_.size();
    if (walked_.violation.empty() && !EachCanEnd()) walked_.violation = "somebody waits for ever";
    return walked_;
  }

 private:
  // The engine cannot be copied: a state is what leads to it.
  std::unique_ptr<StreamWorld> After(const std::vector<Event>& path) const {
    auto world = std::make_unique<StreamWorld>(seed_, executor_, sabotage_);
    for (const Event event : path) world->Happen(event);
    return world;
  }

  // The number of the state that the world is in.
  size_t Visit(std::vector<Event> path, const StreamWorld& world) {
    if (walked_.violation.empty()) walked_.violation = world.violation();
    const auto [state, added] =
        numbers_.try_emplace(std::hash<std::string>()(world.Fingerprint()), paths_.size());
    if (added) {
      paths_.push_back(std::move(path));
      before_.emplace_back();
      if (world.AllEnded(limits_)) ended_.push_back(state->second);
    }
    return state->second;
  }

  void Expand(size_t state) {
    const std::vector<Event> path = paths_[state];
    std::unique_ptr<StreamWorld> world = After(path);
    std::vector<Event> next;
    if (const std::optional<Event> unseen = world->Unseen(limits_)) {
      next.push_back(*unseen);
    } else {
      for (int e = 0; e < StreamWorld::kNumEvents; ++e) {
        if (world->MayHappen(Event(e), limits_)) next.push_back(Event(e));
      }
    }
    for (size_t i = 0; i < next.size(); ++i) {
      if (i != 0) world = After(path);
      world->Happen(next[i]);
      std::vector<Event> longer = path;
      longer.push_back(next[i]);
      const size_t to = Visit(std::move(longer), *world);
      const bool fault = next[i] == Event::kReplace || next[i] == Event::kMoveBad;
      if (!fault) before_[to].push_back(state);
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

  const uint64_t seed_;
  const Executor executor_;
  const Sabotage sabotage_;
  const StreamWorld::Limits limits_;
  std::unordered_map<size_t, size_t>
      numbers_;  // By hash of the fingerprint, in place of gigabytes.
  std::vector<std::vector<Event>> paths_;
  std::vector<std::vector<size_t>> before_;  // States from which one leads here without a fault.
  std::vector<size_t> ended_;
  Walked walked_;
};

constexpr StreamWorld::Limits kAUseAndADeath = {.num_cycles = 1, .num_replacements = 1};
constexpr StreamWorld::Limits kTwoUses = {.num_cycles = 2, .num_replacements = 0};
constexpr StreamWorld::Limits kTwoUsesAndADeath = {.num_cycles = 2, .num_replacements = 1};

struct Model {
  Executor executor;
  uint64_t seed;
  StreamWorld::Limits limits;
};
class StreamWalk : public ::testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Executors, StreamWalk,
                         ::testing::Values(Model{Executor::kWorker, kOverflows, kTwoUsesAndADeath},
                                           Model{Executor::kClient, kPlain, kTwoUses},
                                           Model{Executor::kClient, kOverflows, kAUseAndADeath}));

TEST_P(StreamWalk, NoRuleIsBrokenInAnyOrder) {
  const auto [executor, seed, limits] = GetParam();
  const Walked walked = Walk(seed, executor, Sabotage::kNone, limits).Run();
  EXPECT_EQ(walked.violation, "");
  EXPECT_GT(walked.num_states, 500u);
  RecordProperty("states", static_cast<int>(walked.num_states));
}

struct Mistake {
  Sabotage sabotage;
  StreamWorld::Limits limits;
};
class Planted : public ::testing::TestWithParam<Mistake> {};
INSTANTIATE_TEST_SUITE_P(Mistakes, Planted,
                         ::testing::Values(Mistake{Sabotage::kAnswerAtOnce, kTwoUses},
                                           Mistake{Sabotage::kSpeakUnmapped, kTwoUsesAndADeath},
                                           Mistake{Sabotage::kLeaveOpen, kTwoUsesAndADeath},
                                           Mistake{Sabotage::kForgetStream, kTwoUses},
                                           Mistake{Sabotage::kTellLate, kTwoUses}));

TEST_P(Planted, MistakeIsFound) {
  const auto [sabotage, limits] = GetParam();
  EXPECT_NE(Walk(kOverflows, Executor::kWorker, sabotage, limits).Run().violation, "");
}

}  // namespace
}  // namespace epd::streams
