// Goal: two workers whose small rows go ahead of their announces end two operations alike, and three of them one, with every rank's
// rows where they are read, in every order in which ranks, messages and rows can come, whether all rows are small, one is not, one
// call is wrong, a stage is damaged, a rank dies, two workers lose each other or the group drains in order, which each of them
// hears at a time of its own and no rank before its own worker; and each planted mistake is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/worker/engine/exchange.h"
#include "tests/unit/daemon/worker/world/make_request.h"

namespace epd {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kNumOperations = 2;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kBuffer = 2 * kPage;
constexpr size_t kMaxStates = 300'000;

enum class Fault {
  kNone,
  kOneIsLarge,
  kOneIsWrong,
  kDamaged,
  kLeaderDamaged,
  kDies,
  kCut,  // One worker and the leader, or another one, lose each other.
  kDrains,
  kDrainsAndCut,
};
enum class Sabotage {
  kNone,
  kAnnounceOvertakes,  // The other worker's announce comes before its rows.
  kWordOvertakes,      // The leader's word comes before its rows.
  kLandAside,          // Rows are written into another eager buffer.
  kKeepRows,           // Rows that nobody wants are kept.
  kDrainUnmarked,      // The worker is not told that the drain is in order.
  kDecideEarly,        // The leader takes an announce for word of all rows.
  kForgetOver,         // Nobody hears that rows are over.
};

struct Model {
  const char* name;
  Fault fault = Fault::kNone;
  Sabotage sabotage = Sabotage::kNone;
  const char* violation = "";
  int num_sides = 2;  // Worker and rank s; worker 0 leads.
};
void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

enum class State { kNew, kAnnounced, kCopying, kPublished, kReading, kPulled, kOver };

struct Call {
  State state = State::kNew;
  Submission submission;
  OperationId operation;
  bool eager = false;
  std::vector<uint8_t> told;
  absl::Status status;
};

struct Side {
  explicit Side(int index)
      : exchange({.staging_bytes = 256 * kPage,
                  .eager = {.buffer_bytes = kBuffer, .few_buffers = 2, .pool_share = 2},
                  .self = Incarnation(static_cast<uint64_t>(index) + 1)}) {}

  Exchange exchange;
  // To it, by sender.
  std::map<int, std::deque<PeerMessage>> messages;
  std::map<int, std::deque<std::pair<PeerOperation, Rank>>> rows;
  std::set<RowsName> held;
  std::map<std::pair<int, uint64_t>, RowsName> standing;  // By arena and offset.
  std::array<Call, kNumOperations + 1> calls;             // The last one comes first.
  bool drains = false;
  int num_drained = 0;
  std::vector<std::string> history;
};

// Messages that only count, or change nothing but what waits: next to each other on one side their order is taken to make no
// difference where that makes a walk of three sides whole. ThreeAllSmall does without.
bool IsCounted(LeaderStep step) {
  return step == LeaderStep::kRows || step == LeaderStep::kRowsLanded ||
         step == LeaderStep::kRowsOver || step == LeaderStep::kFailedSeen ||
         step == LeaderStep::kGranted || step == LeaderStep::kPublished;
}
constexpr char kCounted = '+';  // How such an event's name begins.

class World {
 public:
  explicit World(const Model& model) : model_(model) {
    for (int s = 0; s < num_sides(); ++s) sides_.emplace_back(s);
    for (int s = 0; s < num_sides(); ++s) {
      sides_[s].exchange.AddSession(SessionId(1));
      EXPECT_TRUE(sides_[s].exchange.StartTenant(StartOf(s), now_).ok());
      Perform(s);
    }
    // An operation through regions tells the ranks of eager buffers.
    for (int s = 0; s < num_sides(); ++s) Announce(s, kNumOperations);
    while (true) {
      const std::vector<std::function<void()>> choices = Choices();
      if (choices.empty()) break;
      choices[0]();
    }
    warm_ = true;
    for (Side& side : sides_) side.history.clear();
    // With more that can come at any time there are too many states.
    for (int s = 1; drains() && num_sides() > 2 && s < num_sides(); ++s) Announce(s, first());
  }

  std::vector<std::function<void()>> Choices() {
    std::vector<std::function<void()>> choices;
    for (int s = 0; s < num_sides(); ++s) {
      Side& side = sides_[s];
      for (const auto& [from, messages] : side.messages)
        if (!messages.empty()) choices.push_back([this, s, from = from] { Deliver(s, from); });
      for (const auto& [from, rows] : side.rows)
        if (!rows.empty()) choices.push_back([this, s, from = from] { Land(s, from); });
      for (uint32_t k = 0; k <= kNumOperations; ++k) {
        const State state = side.calls[k].state;
        if (state == State::kCopying || state == State::kReading)
          choices.push_back([this, s, k] { Step(s, k); });
        if (warm_ && k >= first() && k < kNumOperations && state == State::kNew &&
            !dead_.contains(s))
          choices.push_back([this, s, k] { Announce(s, k); });
      }
    }
    for (int s = 0; s < 2; ++s) {  // A third one hears with the second one.
      if (!warm_ || !drains() || sides_[s].drains) continue;
      choices.push_back([this, s] {
        for (int also = s; also == s || (s == 1 && also < num_sides()); ++also) Drain(also);
      });
    }
    for (int s = 1; s < num_sides(); ++s) {
      for (int other = 0; warm_ && cuts() && !cut_.has_value() && other < s; ++other)
        if (s - other == 1) choices.push_back([this, other, s] { Cut(other, s); });
    }
    for (int s = 0; s < 2; ++s) {  // Others are like the second one.
      if (warm_ && model_.fault == Fault::kDies && dead_.empty())
        choices.push_back([this, s] { Die(s); });
    }
    return choices;
  }

  // What a worker has seen says all of its state, and all of them all of the streams'.
  std::string Digest() const {
    std::string all;
    for (const Side& side : sides_) {
      std::vector<std::string> events = side.history;
      const bool sorts = num_sides() > 2 && model_.fault != Fault::kNone;
      for (auto begin = events.begin(); sorts && begin != events.end();) {
        const auto end = std::find_if(
            begin, events.end(), [](const std::string& event) { return event[0] != kCounted; });
        std::sort(begin, end);
        begin = end == events.end() ? end : end + 1;
      }
      absl::StrAppend(&all, absl::StrJoin(events, ""), "|");
    }
    return all;
  }
  const std::string& violation() const { return violation_; }

  // All announce; of the messages between others than `mute` and `deaf` all arrive.
  void RunBut(int mute, int deaf) {
    for (int s = 0; s < num_sides(); ++s) Announce(s, first());
    for (bool found = true; found;) {
      found = false;
      for (int s = 0; s < num_sides(); ++s) {
        for (int from = 0; from < num_sides(); ++from) {
          if (sides_[s].messages[from].empty() || (from == mute && s == deaf)) continue;
          found = true;
          Deliver(s, from);
        }
      }
    }
  }
  // What the side says of the group once nobody has come for so long.
  std::string CauseAfter(int s, absl::Duration wait) {
    now_ += wait;
    sides_[s].exchange.Tick(now_);
    for (const Effect& effect : sides_[s].exchange.TakeEffects()) {
      if (const auto* broken = std::get_if<ReportTenantBroken>(&effect))
        return std::string(broken->cause.message());
    }
    return "";
  }

  // Nothing can happen any more.
  void Rest() {
    const bool faultless = model_.fault == Fault::kNone || model_.fault == Fault::kOneIsLarge;
    for (int s = 0; s < num_sides(); ++s) {
      Side& side = sides_[s];
      for (uint32_t k = first(); k < kNumOperations; ++k) {
        const Call& call = side.calls[k];
        if (dead_.contains(s)) continue;
        if (call.state != State::kOver) Violate("a call waits for ever");
        if (faultless && !call.status.ok()) Violate("a call has failed that nobody had wrong");
      }
      if (side.exchange.num_open_operations() != 0) Violate("an operation stays open");
      if (side.drains && side.num_drained != 1) Violate("a drain has no end");
      if (!side.held.empty()) Violate("rows stay held");
      if (side.exchange.staging().num_landings() != 0) Violate("a landing stays taken");
    }
    // The leader's word can be lost with its stream.
    const bool alike = (!cut_.has_value() || cut_->first != 0) && model_.fault != Fault::kDies;
    for (const Side& side : sides_) {
      for (uint32_t k = 0; alike && k < kNumOperations; ++k) {
        if (sides_[0].calls[k].status.ok() != side.calls[k].status.ok())
          Violate("good on one rank and failed on another");
      }
    }
  }

 private:
  int num_sides() const { return model_.num_sides; }
  bool IsCut(int a, int b) const {
    return cut_.has_value() && *cut_ == std::pair(std::min(a, b), std::max(a, b));
  }
  bool drains() const {
    return model_.fault == Fault::kDrains || model_.fault == Fault::kDrainsAndCut;
  }
  bool cuts() const { return model_.fault == Fault::kCut || model_.fault == Fault::kDrainsAndCut; }

  // With the steps of a region, or an event that can come at any time, a second operation makes too many states.
  uint32_t first() const {
    const Fault fault = model_.fault;
    if (num_sides() > 2) return 1;
    return fault == Fault::kNone || fault == Fault::kOneIsWrong || fault == Fault::kDamaged ||
                   fault == Fault::kLeaderDamaged
               ? 0
               : 1;
  }

  void Violate(const char* what) {
    if (violation_.empty()) violation_ = what;
  }

  TenantStart StartOf(int at) const {
    TenantStart start{.group = kGroup,
                      .epoch = Epoch(3),
                      .formation = Formation(1),
                      .spec = MakeSpec(static_cast<uint32_t>(num_sides())),
                      .members = {},
                      .bases = {},
                      .base_cause = absl::AbortedError("before")};
    for (int s = 0; s < num_sides(); ++s) {
      const NodeId node{absl::StrCat("n", s)};
      RankHolder member =
          MakeMember(static_cast<uint32_t>(s), s == at ? SessionId(1) : SessionId());
      member.node = node;
      start.members.push_back(std::move(member));
      start.nodes.push_back(
          {node, Incarnation(static_cast<uint64_t>(s) + 1), "somewhere", WorkerName()});
    }
    return start;
  }

  void Take(int s, Call& call, const shm::SlotRequest& request) {
    call.submission = {.session = SessionId(1), .slot = 0, .claim = ++claim_};
    sides_[s].exchange.Take(call.submission, request, now_);
    Perform(s);
  }

  void Announce(int s, uint32_t k) {
    sides_[s].history.push_back(absl::StrCat("a", k));
    Call& call = sides_[s].calls[k];
    call.state = State::kAnnounced;
    shm::SlotRequest request = MakeDispatch(
        {.rank = static_cast<uint32_t>(s), .execution = warm_ ? 1u : 0u, .ordinal = k});
    request.stage_bytes = kPage;
    const bool large = model_.fault == Fault::kOneIsLarge && s == 1 && k == 1;
    if (warm_ && !large) SetEagerBuffer(request, k);
    if (model_.fault == Fault::kOneIsWrong && warm_ && s == 1 && k == 1) request.error_code = 3;
    Take(s, call, request);
  }

  void Step(int s, uint32_t k) {
    sides_[s].history.push_back(absl::StrCat("s", k));
    Call& call = sides_[s].calls[k];
    const bool publishes = call.state == State::kCopying;
    if (!publishes && call.eager) CheckRows(s, k);
    call.state = publishes ? State::kPublished : State::kPulled;
    Take(s, call,
         MakeStep({.rank = static_cast<uint32_t>(s)},
                  publishes ? shm::Step::kPublish : shm::Step::kPulled, call.operation));
  }

  // The rows that the call has read are the other ranks' of the same call.
  void CheckRows(int s, uint32_t k) {
    const Call& call = sides_[s].calls[k];
    for (int other = 0; other < num_sides(); ++other) {
      if (other == s) continue;
      const auto found =
          sides_[s].standing.find({other, call.told[static_cast<size_t>(other)] * kBuffer});
      if (found == sides_[s].standing.end() || found->second.key.ordinal != k ||
          found->second.rank != Rank(static_cast<uint32_t>(other)))
        Violate("good, and the other rank's rows are not there");
    }
  }

  void Deliver(int s, int sender) {
    Side& side = sides_[s];
    std::deque<PeerMessage>& messages = side.messages[sender];
    auto next = messages.begin();
    const auto overtakes = [&](LeaderStep step) {
      for (auto it = messages.begin(); it != messages.end(); ++it) {
        if (it->step == step && next->step == LeaderStep::kRows && it->key == next->key) next = it;
      }
    };
    if (model_.sabotage == Sabotage::kAnnounceOvertakes) overtakes(LeaderStep::kAnnounce);
    if (model_.sabotage == Sabotage::kWordOvertakes) overtakes(LeaderStep::kDecided);
    const PeerMessage message = *next;
    messages.erase(next);
    side.history.push_back(absl::StrCat(std::string(1, IsCounted(message.step) ? kCounted : 'm'),
                                        static_cast<int>(message.step), "/", sender));
    const Incarnation from(static_cast<uint64_t>(sender) + 1);
    if (message.step == LeaderStep::kRows) side.held.insert(NameRows(from, message));
    side.exchange.Receive(from, message, now_);
    if (model_.sabotage == Sabotage::kDecideEarly && message.step == LeaderStep::kAnnounce) {
      PeerMessage early = message;
      early.step = LeaderStep::kRowsLanded;
      side.exchange.Receive(from, early, now_);
    }
    Perform(s);
  }

  void Land(int s, int sender) {
    sides_[s].history.push_back(absl::StrCat("+l", sender));
    const auto [operation, rank] = sides_[s].rows[sender].front();
    sides_[s].rows[sender].pop_front();
    sides_[s].exchange.RowsLanded(operation, rank, now_);
    Perform(s);
  }

  void Die(int s) {
    dead_.insert(s);
    Side& side = sides_[s];
    side.history.push_back("d");
    for (Call& call : side.calls) call.state = State::kOver;
    side.exchange.SessionDead(SessionId(1), absl::UnavailableError("killed"), false, now_);
    Perform(s);
  }

  void Drain(int s) {
    Side& side = sides_[s];
    side.drains = true;
    side.history.push_back("D");
    side.exchange.DrainTenant(kGroup, Formation(1), now_,
                              model_.sabotage != Sabotage::kDrainUnmarked);
    Perform(s);
  }

  void Cut(int a, int b) {
    cut_ = {a, b};
    for (const auto& [s, other] : {std::pair(a, b), std::pair(b, a)}) {
      sides_[s].messages[other].clear();
      sides_[s].rows[other].clear();
    }
    for (const auto& [s, other] : {std::pair(a, b), std::pair(b, a)}) {
      sides_[s].history.push_back(absl::StrCat("c", other));
      sides_[s].exchange.PeerLost(Incarnation(static_cast<uint64_t>(other) + 1),
                                  absl::UnavailableError("cable"), now_);
      Perform(s);
    }
  }

  static int SideOf(Incarnation worker) { return static_cast<int>(worker.value) - 1; }
  void Post(int s, int to, const PeerMessage& message) {
    const bool forgets =
        model_.sabotage == Sabotage::kForgetOver && message.step == LeaderStep::kRowsOver;
    if (!IsCut(s, to) && !forgets) sides_[to].messages[s].push_back(message);
  }

  void Perform(int s) {
    PerformOnly(s);
    while (!due_.empty()) {
      const auto [side, call] = due_.front();
      due_.pop_front();
      Step(side, call);
    }
  }

  void PerformOnly(int s) {
    Exchange& exchange = sides_[s].exchange;
    for (Effects effects = exchange.TakeEffects(); !effects.empty();
         effects = exchange.TakeEffects()) {
      for (const Effect& effect : effects) Carry(s, effect);
    }
  }

  void Carry(int s, const Effect& effect) {
    Side& side = sides_[s];
    if (const auto* commit = std::get_if<CommitPages>(&effect)) {
      side.exchange.PagesCommitted(commit->operation, absl::OkStatus(), now_);
    } else if (const auto* send = std::get_if<SendToPeer>(&effect)) {
      Post(s, SideOf(send->peer), send->message);
    } else if (const auto* rows = std::get_if<SendRows>(&effect)) {
      for (const auto& [peer, unused] : rows->destinations) {
        const int to = SideOf(peer);
        if (!IsCut(s, to)) sides_[to].rows[s].emplace_back(rows->operation, rows->rank);
      }
    } else if (const auto* ahead = std::get_if<SendRowsAhead>(&effect)) {
      const bool damaged = ahead->stages[0].message.key.ordinal == 1 &&
                           model_.fault == (s == 0 ? Fault::kLeaderDamaged : Fault::kDamaged) &&
                           s < 2;
      if (damaged) {
        return side.exchange.RowsAheadRefused(ahead->operation, ahead->stages[0].rank,
                                              absl::DataLossError("damaged"), now_);
      }
      for (const auto& [peer, unused] : ahead->destinations)
        Post(s, SideOf(peer), ahead->stages[0].message);
      side.exchange.RowsAheadSent(ahead->operation, now_);
    } else if (const auto* land = std::get_if<LandRows>(&effect)) {
      const uint64_t offset =
          model_.sabotage == Sabotage::kLandAside ? land->offset ^ kBuffer : land->offset;
      if (side.held.erase(land->name) == 0) Violate("rows land that have not come");
      for (uint32_t k = 0; k < kNumOperations; ++k) {
        const Call& call = side.calls[k];
        if (call.eager && call.state == State::kReading &&
            call.told[static_cast<size_t>(land->arena)] * kBuffer == offset)
          Violate("rows land where another call's are read");
      }
      side.standing[{land->arena, offset}] = land->name;
    } else if (const auto* drop = std::get_if<DropRows>(&effect)) {
      if (model_.sabotage != Sabotage::kKeepRows) side.held.erase(drop->name);
    } else if (const auto* told = std::get_if<NameEagerBuffers>(&effect)) {
      for (Call& call : side.calls) {
        if (call.submission != told->submission) continue;
        call.eager = true;
        call.told = told->eager_buffer_of_rank;
      }
    } else if (std::get_if<ReportTenantDrained>(&effect) != nullptr) {
      ++side.num_drained;
    } else if (const auto* answer = std::get_if<AnswerSubmission>(&effect)) {
      Answered(s, *answer);
    }
  }

  void Answered(int s, const AnswerSubmission& answer) {
    for (Call& call : sides_[s].calls) {
      if (call.submission != answer.submission || call.state == State::kOver) continue;
      call.operation = answer.operation;
      if (!answer.status.ok()) {
        call.status = answer.status;
        if (answer.status.code() == absl::StatusCode::kFailedPrecondition && !sides_[s].drains)
          Violate("refused for a drain of which its node does not know");
        call.state = State::kOver;
      } else if (call.state == State::kAnnounced) {
        call.state = call.eager ? State::kReading : State::kCopying;
      } else {
        call.state = call.state == State::kPublished ? State::kReading : State::kOver;
      }
      // With three sides there are states enough, and one call is nobody's way.
      const auto k = static_cast<uint32_t>(&call - sides_[s].calls.data());
      const bool steps = call.state == State::kCopying || call.state == State::kReading;
      if (warm_ && num_sides() > 2 && steps) due_.emplace_back(s, k);
    }
  }

  const Model model_;
  absl::Time now_ = absl::UnixEpoch();
  std::deque<Side> sides_;
  std::set<int> dead_;
  std::deque<std::pair<int, uint32_t>> due_;  // Steps of a side's call.
  bool warm_ = false;
  std::optional<std::pair<int, int>> cut_;  // The lower one first.
  uint32_t claim_ = 1;
  std::string violation_;
};

struct Walk {
  std::string violation;  // The first one found, if any.
  size_t num_states = 0;
  size_t num_ends = 0;
};

// Every state that can be reached, each once. States cannot be copied: a path goes on by its first choice, and is begun anew
// for each other one.
Walk WalkAll(const Model& model) {
  Walk walk;
  std::set<std::string> seen;
  std::vector<std::vector<size_t>> paths = {{}};
  while (!paths.empty() && walk.violation.empty() && seen.size() < kMaxStates) {
    std::vector<size_t> path = std::move(paths.back());
    paths.pop_back();
    World world(model);
    for (size_t choice : path) world.Choices()[choice]();
    while (walk.violation.empty()) {
      walk.violation = world.violation();
      if (!seen.insert(world.Digest()).second) break;
      const std::vector<std::function<void()>> choices = world.Choices();
      if (choices.empty()) {
        ++walk.num_ends;
        world.Rest();
        walk.violation = world.violation();
        break;
      }
      for (size_t choice = 1; choice < choices.size(); ++choice) {
        paths.push_back(path);
        paths.back().push_back(choice);
      }
      path.push_back(0);
      choices[0]();
    }
  }
  walk.num_states = seen.size();
  return walk;
}

class RowsAheadWalkTest : public testing::TestWithParam<Model> {};

TEST_P(RowsAheadWalkTest, FindsWhatIsPlantedAndNothingElse) {
  const Walk walk = WalkAll(GetParam());
  EXPECT_EQ(walk.violation, GetParam().violation);
  EXPECT_LT(walk.num_states, kMaxStates) << "the walk is whole";
  EXPECT_GT(walk.num_states, GetParam().sabotage == Sabotage::kNone ? 40u : 0u);
  RecordProperty("states", static_cast<int>(walk.num_states));
  std::cout << walk.num_states << " states, " << walk.num_ends << " ends\n";
}

TEST(RowsAheadTest, WhoseRowsDoNotComeIsNamed) {
  const Deadlines deadlines;
  World of_leader({.name = "", .num_sides = 3});
  of_leader.RunBut(2, 0);
  EXPECT_THAT(of_leader.CauseAfter(0, deadlines.absent), HasSubstr("for rank=2 host=host2"));

  World of_others({.name = "", .num_sides = 3});
  of_others.RunBut(2, 1);
  EXPECT_THAT(of_others.CauseAfter(0, deadlines.absent),
              HasSubstr("for word that all rows are at the worker of rank=1 host=host1"));
  EXPECT_THAT(of_others.CauseAfter(1, kLeaderFirst), HasSubstr("for rows of rank=2 host=host2"));
}

constexpr Model kModels[] = {
    {"AllSmall"},
    {"OneIsLarge", Fault::kOneIsLarge},
    {"OneIsWrong", Fault::kOneIsWrong},
    {"Damaged", Fault::kDamaged},
    {"LeaderDamaged", Fault::kLeaderDamaged},
    {"Dies", Fault::kDies},
    {"Cut", Fault::kCut},
    {"Drains", Fault::kDrains},
    {"DrainsAndCut", Fault::kDrainsAndCut},
    {"AnnounceOvertakes", Fault::kNone, Sabotage::kAnnounceOvertakes,
     "a call has failed that nobody had wrong"},
    {"WordOvertakes", Fault::kNone, Sabotage::kWordOvertakes,
     "a call has failed that nobody had wrong"},
    {"LandAside", Fault::kNone, Sabotage::kLandAside,
     "good, and the other rank's rows are not there"},
    {"KeepRows", Fault::kOneIsLarge, Sabotage::kKeepRows, "rows stay held"},
    {"DrainUnmarked", Fault::kDrains, Sabotage::kDrainUnmarked,
     "refused for a drain of which its node does not know"},
    {"ThreeAllSmall", Fault::kNone, Sabotage::kNone, "", 3},
    {"ThreeOneIsLarge", Fault::kOneIsLarge, Sabotage::kNone, "", 3},
    {"ThreeOneIsWrong", Fault::kOneIsWrong, Sabotage::kNone, "", 3},
    {"ThreeDamaged", Fault::kDamaged, Sabotage::kNone, "", 3},
    {"ThreeLeaderDamaged", Fault::kLeaderDamaged, Sabotage::kNone, "", 3},
    {"ThreeDies", Fault::kDies, Sabotage::kNone, "", 3},
    {"ThreeCut", Fault::kCut, Sabotage::kNone, "", 3},
    {"ThreeDrains", Fault::kDrains, Sabotage::kNone, "", 3},
    {"ThreeDecideEarly", Fault::kNone, Sabotage::kDecideEarly,
     "a call has failed that nobody had wrong", 3},
    {"ThreeDecideEarlyAndCut", Fault::kCut, Sabotage::kDecideEarly,
     "good on one rank and failed on another", 3},
    {"ThreeForgetOver", Fault::kOneIsLarge, Sabotage::kForgetOver, "rows stay held", 3},
    {"ThreeForgetOverOfFailed", Fault::kOneIsWrong, Sabotage::kForgetOver, "rows stay held", 3},
};

INSTANTIATE_TEST_SUITE_P(All, RowsAheadWalkTest, testing::ValuesIn(kModels),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace epd
