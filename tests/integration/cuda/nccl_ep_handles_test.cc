// Goal: NCCL EP is told the routes of a plan once, however many operations go by it, and anew where they are others; all members
// tell it at the same operations, also behind one that has failed, so that nobody waits for ever; and rows are right all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/plan_checksum.h"
#include "kernels/routing_plan.h"
#include "tests/integration/client_c/harness/client_rank.h"
#include "tests/integration/client_c/harness/node_fleet.h"
#include "tests/integration/cuda/on_nccl_ep.h"
#include "tests/integration/cuda/stream_rank.h"
#include "tests/integration/cuda/stream_steps.h"

namespace epd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint32_t kRanks = 2;

// Of these tokens as many go to each expert as of plan A's.
constexpr char kShifted = 'S';

// Plan 'A' and so on; 'a' is plan 'A' with a receive buffer that is smaller on rank 0.
ExchangeCase CaseOf(char plan) {
  ExchangeCase c = BasicOnNcclEp(kRanks);
  c.alignment = 4;
  const bool is_smaller = plan >= 'a';
  c.seed = static_cast<uint32_t>(is_smaller ? plan - 'a' + 'A' : plan);
  if (plan == kShifted) c.seed = 'A';
  if (is_smaller) c.capacities = {c.recv_capacity() - 4, c.recv_capacity()};
  return c;
}

std::string Compare(const ClientRank& rank, const RankData& data, char call) {
  const bool scatters = call == 'd' || call == 's';
  if (scatters && rank.recv_tokens != data.recv_tokens) return "other rows";
  if (call == 'd' && rank.recv_weights != data.recv_weights) return "other weights";
  if (!scatters && rank.tokens != data.combined) return "other sums";
  if (call == 'b' && rank.weights != data.weight_grads) return "other gradients";
  return "ok";
}

// A rank with several plans of one group. It does what it is told: a call and a plan, "pA" or "dA", "cA", "bA", "sA" (prepare,
// dispatch, combine, dispatch backward, combine backward), or "xAB": from now on plan A's bytes are those of B, under its name.
class ManyPlans {
 public:
  explicit ManyPlans(JoinedRank& joined) : joined_(joined) {}

  std::string Do(const std::string& what) {
    ClientRank& rank = Of(what[1]);
    const ExchangeCase c = CaseOf(what[1]);
    RankData data = MakeExchange(c)[rank.rank()];
    if (what[1] == kShifted) {
      std::rotate(data.topk_idx.begin(), data.topk_idx.begin() + c.top_k, data.topk_idx.end());
    }
    if (what[0] == 'x') return Forge(rank, Of(what[2]));
    if (what[1] >= 'a') rank.plan = Of(static_cast<char>(what[1] - 'a' + 'A')).plan;
    const Result result = Call(rank, data, what[0]);
    if (!result.ok()) return result.message;
    return what[0] == 'p' ? "ok" : Compare(rank, data, what[0]);
  }

 private:
  static Result Call(ClientRank& rank, const RankData& data, char call) {
    if (call == 'p') return rank.Prepare(data);
    if (call == 'd') return rank.Dispatch(data);
    if (call == 'c') return rank.Combine(data);
    if (call == 'b') return rank.DispatchBackward(data);
    return rank.CombineBackward(data);
  }
  ClientRank& Of(char plan) {
    std::unique_ptr<ClientRank>& rank = ranks_[plan];
    if (rank == nullptr) {
      rank = std::make_unique<ClientRank>(joined_.client, CaseOf(plan), joined_.rank->rank());
      rank->Borrow(*joined_.rank);
    }
    return *rank;
  }
  static std::string Forge(ClientRank& rank, const ClientRank& from) {
    PlanHeader name;
    std::memcpy(&name, rank.plan.data(), sizeof name);
    rank.plan = from.plan;
    PlanHeader header;
    std::memcpy(&header, rank.plan.data(), sizeof header);
    header.plan_id = name.plan_id;
    std::memcpy(rank.plan.data(), &header, sizeof header);
    // The checksum's sum begins at words.
    std::vector<uint64_t> words(rank.plan.size() / 8);
    std::memcpy(words.data(), rank.plan.data(), words.size() * 8);
    const RoutingSpec spec{.num_ranks = static_cast<int32_t>(header.num_ranks),
                           .num_experts = static_cast<int32_t>(header.num_experts),
                           .top_k = static_cast<int32_t>(header.top_k)};
    header.checksum =
        PlanChecksum(words.data(), PlanUsedBytes(spec, header.num_tokens, header.num_routes));
    std::memcpy(rank.plan.data(), &header, sizeof header);
    return "ok";
  }

  JoinedRank& joined_;
  std::map<char, std::unique_ptr<ClientRank>> ranks_;
};

class NcclEpHandles : public OnNcclEp {
 protected:
  void SetUp() override {
    fleet_.emplace(kRanks, kNcclEpFlags);
    ranks_ = fleet_->StartRanks(
        CaseOf('A'),
        [](JoinedRank& joined, Link& link) -> std::string {
          ManyPlans plans(joined);
          link.Say("joined");
          for (std::string what = link.Hear(); what != "end"; what = link.Hear()) {
            if (what.empty()) return "nobody says anything";
            link.Say(plans.Do(what));
          }
          return "";
        },
        kOnNcclEp);
    for (const auto& rank : ranks_) ASSERT_EQ(rank->link().Hear(), "joined");
  }
  void TearDown() override {
    for (const auto& rank : ranks_) rank->link().Say("end");
    EXPECT_THAT(FinishAll(ranks_), Each(""));
    EXPECT_EQ(NumEnds(*fleet_, kRanks), 0);
  }

  std::string DoOnOne(const std::string& what) {
    ranks_[0]->link().Say(what);
    return ranks_[0]->link().Hear();
  }
  // What each rank says of a call that all make at once.
  std::vector<std::string> Do(const std::string& what) {
    for (const auto& rank : ranks_) rank->link().Say(what);
    std::vector<std::string> said;
    for (const auto& rank : ranks_) said.push_back(rank->link().Hear());
    return said;
  }
  // How often a member has told the library routes in these calls, all of which are right.
  int NumTold(const std::string& calls) {
    const int before = gpu_.CountNcclEpCalls("ncclEpUpdateHandle");
    std::istringstream words(calls);
    for (std::string what; words >> what;) EXPECT_THAT(Do(what), Each("ok")) << what;
    const int told = gpu_.CountNcclEpCalls("ncclEpUpdateHandle") - before;
    EXPECT_EQ(told % static_cast<int>(kRanks), 0) << "one member has told alone";
    return told / static_cast<int>(kRanks);
  }

  std::optional<NodeFleet> fleet_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

TEST_F(NcclEpHandles, AllOperationsOfAPlanCostOneUpdate) {
  EXPECT_EQ(NumTold("pA"), 0);
  EXPECT_EQ(NumTold("dA cA"), 1);
  EXPECT_EQ(NumTold("sA bA dA cA"), 0);
}

TEST_F(NcclEpHandles, ANewPlanCostsOneMoreAlsoOfTheSameRoutes) {
  EXPECT_EQ(NumTold("pA dA cA"), 1);
  EXPECT_EQ(NumTold("pA dA cA"), 1);
  EXPECT_EQ(NumTold("pB dB cB"), 1);
}

TEST_F(NcclEpHandles, TwoPlansByTurnsCostNoMoreThanOneEach) {
  EXPECT_EQ(NumTold("pA pB dA dB cA cB"), 2);
  EXPECT_EQ(NumTold("sB sA bB bA dA dB"), 0);
  EXPECT_EQ(NumTold("pC dC cC"), 1);
  EXPECT_EQ(NumTold("sB bB"), 0) << "A went";
  EXPECT_EQ(NumTold("sA bA"), 1);
}

TEST_F(NcclEpHandles, AnotherReceiveBufferCostsOneMore) {
  EXPECT_EQ(NumTold("pA dA cA"), 1);
  EXPECT_EQ(NumTold("da ca sa ba"), 1);
  EXPECT_EQ(NumTold("dA ca"), 0);
}

TEST_F(NcclEpHandles, APlanThatChangesUnderItsNameIsAnErrorOnEveryRankAndANewOneIsRight) {
  EXPECT_EQ(NumTold("pA pB dA cA xAB"), 1);
  for (const char* call : {"dA", "cA", "dA"}) {
    EXPECT_THAT(Do(call), Each(AllOf(HasSubstr("DATA_LOSS"), HasSubstr("prepare again")))) << call;
  }
  EXPECT_EQ(NumTold("dB cB"), 1);
  EXPECT_EQ(NumTold("pA dA cA sA bA"), 1);
}

// The others go on with what the library has been told, so this one must, too.
TEST_F(NcclEpHandles, APlanThatChangesOnOneRankIsAnErrorOnEveryRankAndNobodyWaitsForIt) {
  EXPECT_EQ(NumTold("pA pS dA"), 1);
  EXPECT_EQ(DoOnOne("xAS"), "ok");
  const int before = gpu_.CountNcclEpCalls("ncclEpUpdateHandle");
  for (const char* call : {"dA", "cA", "dA"}) {
    EXPECT_THAT(Do(call), Each(AllOf(HasSubstr("DATA_LOSS"), HasSubstr("prepare again")))) << call;
  }
  EXPECT_EQ(gpu_.CountNcclEpCalls("ncclEpUpdateHandle"), before);
  EXPECT_EQ(NumTold("pA dA cA sA bA"), 1);
}

class NcclEpLies : public NcclEpHandles {
 protected:
  void SetUp() override {
    Arm("counts", "update");
    NcclEpHandles::SetUp();
  }
};

TEST_F(NcclEpLies, ALayoutThatIsNotThePlansFailsAllThatGoByItAndTheNextPlanIsRight) {
  EXPECT_EQ(NumTold("pA dA pB"), 1);
  EndTheNextCall();
  for (const char* call : {"dB", "cB", "sB"}) {
    EXPECT_THAT(Do(call), Each(HasSubstr("NCCL EP laid its experts out in zones of"))) << call;
  }
  EXPECT_EQ(NumTold("cA"), 0);
  EXPECT_EQ(NumTold("pB dB cB"), 1);
}

// In replays prepare makes a plan of its own each time.
TEST_F(OnNcclEp, ReplaysTellEachPlanOnce) {
  NodeFleet fleet(kRanks, kNcclEpFlags);
  const ExchangeCase c = CaseOf('A');
  auto ranks = fleet.StartRanks(
      c,
      [&c](JoinedRank& joined, Link& link) -> std::string {
        StreamRank streams(FakeGpu::Library(), joined, c);
        std::string problem = streams.problem;
        if (problem.empty()) problem = RunSteps(streams, c, joined.rank->rank(), 0, 3);
        link.Say("ran");
        link.Hear();
        if (problem.empty()) problem = ReplaySteps(streams, c, joined.rank->rank(), 3, 13);
        link.Say("replayed");
        link.Hear();
        return problem;
      },
      kOnNcclEp);
  const auto told = [&](const char* what) {
    for (const auto& rank : ranks) EXPECT_EQ(rank->link().Hear(), what);
    return gpu_.CountNcclEpCalls("ncclEpUpdateHandle");
  };
  const int ran = told("ran");
  for (const auto& rank : ranks) rank->link().Say("go on");
  EXPECT_EQ(told("replayed") - ran, 10 * static_cast<int>(kRanks));
  for (const auto& rank : ranks) rank->link().Say("end");
  EXPECT_THAT(FinishAll(ranks), Each(""));
}

}  // namespace
}  // namespace epd::testing
