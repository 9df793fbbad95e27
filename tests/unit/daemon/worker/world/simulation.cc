#include "tests/unit/daemon/worker/world/simulation.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/unit/daemon/worker/world/callers.h"
#include "tests/unit/daemon/worker/world/make_request.h"
#include "tests/unit/daemon/worker/world/streams.h"

namespace epd::world {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kDeviceBytes = uint64_t{256} << 20;

void Finish(const World& world, SimulationResult& result) {
  result.violation = world.violation();
  result.last_steps = world.last_steps();
  const ExchangeOptions& engine = world.options().engine;
  result.options =
      absl::StrCat(world.num_workers(), " workers, staging_bytes=", engine.staging_bytes,
                   ", stream_region_bytes=", engine.stream_region_bytes);
  for (const Group& group : world.groups) {
    absl::StrAppend(&result.options, "\n  group ", group.id.value, ": tenant '", group.spec.tenant,
                    "', backend ", group.spec.backend, ", executor ",
                    std::string(Name(group.spec.executor)),
                    group.spec.drop_on_overflow ? ", drops" : "", ", ranks on workers ",
                    absl::StrJoin(group.worker_of, " "));
  }
  result.tally["formations"] = world.num_formations;
  result.tally["revoked"] = world.num_revoked;
  result.tally["turns"] = world.num_turns;
  result.tally["cancelled"] = world.num_cancelled;
  result.tally["cancelled pages"] = world.num_cancelled_pages;
  result.tally["in several buffers"] = world.num_in_several;
}

// Groups and tenants of one worker, with everything that clients can do.
void RunOneWorker(uint64_t seed, Sabotage sabotage, bool trace, SimulationResult& result) {
  WorldOptions options{
      .per_mille_of_moves_fail = 50, .per_mille_of_commits_fail = 30, .pages_take_time = true};
  options.engine = {
      .staging_bytes = 16 * kPage * (1 + seed % 4) * (seed % 3 == 0 ? 8 : 1),
      .hold_limit = absl::Seconds(30),
      .eager = {.buffer_bytes = 2 * kPage, .few_buffers = 3, .max_buffers = 11, .pool_share = 2}};
  World world(options, seed, sabotage);
  if (trace) world.Trace();
  using enum Event;
  Callers callers(world, {.events = {{90, kCall},
                                     {61, kGoOn},
                                     {10, kMove},
                                     {40, kPages},
                                     {16, kTime},
                                     {1, kLongTime},
                                     {4, kHostile},
                                     {2, kFreeze},
                                     {4, kThaw},
                                     {1, kKill},
                                     {2, kProcessGone},
                                     {8, kControl}},
                          .num_ordinals = 3});
  const uint64_t num_groups = 1 + world.Roll(3);
  for (uint64_t g = 0; g < num_groups; ++g) {
    Group group;
    group.spec = MakeSpec(static_cast<uint32_t>(2 + world.Roll(3)));
    if (world.Chance(30)) group.spec.executor = Executor::kWorker;
    group.spec.deadlines.absent = absl::Seconds(60);
    // Later ones are tenants of the first group, of whom nothing is shared, or groups that share sessions, and so arenas,
    // with it.
    const bool tenant = g > 0 && world.Chance(50);
    if (tenant) {
      group.spec = world.groups[0].spec;
      group.spec.tenant = absl::StrCat("tenant", g);
    }
    for (uint32_t r = 0; r < group.spec.num_ranks; ++r) {
      const bool shares = g > 0 && !tenant && r < world.groups[0].members.size();
      group.members.push_back(shares ? world.groups[0].members[r] : callers.NewSession());
      group.worker_of.push_back(0);
    }
    callers.AddGroup(std::move(group));
  }
  callers.Run(200);
  result.tally["good"] = callers.num_good();
  result.tally["failed"] = callers.num_failed();
  Finish(world, result);
}

// Six groups, which three workers lead by turns: two are GPUs of one node. Two groups are tenants of one communicator.
void RunWorkers(uint64_t seed, Sabotage sabotage, bool trace, SimulationResult& result) {
  constexpr int kWorkers = 3;
  WorldOptions options{.num_workers = kWorkers,
                       .two_on_one_node = true,
                       .per_mille_of_moves_fail = 10,
                       .pages_take_time = true};
  // Room for one operation at a time, or for a few.
  options.engine = {.staging_bytes = (seed % 2 == 0 ? 130 : 240) * kPage,
                    .device_staging_bytes = kDeviceBytes};
  World world(options, seed, sabotage);
  if (trace) world.Trace();
  using enum Event;
  Callers callers(world, {.events = {{300, kCall},
                                     {300, kGoOn},
                                     {600, kMessage},
                                     {150, kRows},
                                     {150, kMove},
                                     {150, kPages},
                                     {150, kTime},
                                     {1, kCut}},
                          .num_programs = 2,
                          .prepares = true,
                          .time = absl::Microseconds(1)});
  for (int g = 0; g < 6; ++g) {
    const bool on_device = g % kWorkers == 1;
    Group group;
    group.spec = MakeSpec(6);
    group.spec.name = absl::StrCat("g", g);
    group.spec.executor = g % 2 == 1 || on_device ? Executor::kWorker : Executor::kClient;
    if (on_device) group.spec.backend = "cuda";
    for (int r = 0; r < 6; ++r) {
      group.worker_of.push_back((g + r / 2) % kWorkers);
      group.members.push_back(callers.NewSession());
    }
    callers.AddGroup(std::move(group));
  }
  callers.Run(6000);
  result.tally["good"] = callers.num_good();
  result.tally["failed"] = callers.num_failed();
  Finish(world, result);
}

// Groups of two ranks a worker, which lead by turns: small rows go ahead of their announce, larger ones through regions.
template <int kWorkers>
void RunSmallRows(uint64_t seed, Sabotage sabotage, bool trace, SimulationResult& result) {
  WorldOptions options{
      .num_workers = kWorkers, .per_mille_of_moves_fail = 5, .pages_take_time = true};
  // Room for more operations than there are eager buffers, or for few.
  options.engine = {.staging_bytes = (seed % 2 == 0 ? 130 : 400) * kPage,
                    .eager = {.buffer_bytes = 2 * kPage,
                              .few_buffers = 1 + static_cast<uint32_t>(seed % 3),
                              .pool_share = 2}};
  World world(options, seed, sabotage);
  if (trace) world.Trace();
  using enum Event;
  Callers callers(world, {.events = {{300, kCall},
                                     {300, kGoOn},
                                     {450, kMessage},
                                     {100, kRows},
                                     {100, kPages},
                                     {100, kTime},
                                     {1, kCut}},
                          .num_programs = 2,
                          .time = absl::Microseconds(1)});
  for (int g = 0; g < 3; ++g) {
    Group group;
    group.spec = MakeSpec(2 * kWorkers);
    group.spec.name = absl::StrCat("g", g);
    for (int r = 0; r < 2 * kWorkers; ++r) {
      group.worker_of.push_back((g + r / 2) % kWorkers);
      group.members.push_back(callers.NewSession());
    }
    callers.AddGroup(std::move(group));
  }
  callers.Run(kWorkers == 2 ? 3000 : 10000);
  result.tally["good"] = callers.num_good();
  result.tally["failed"] = callers.num_failed();
  result.tally["rows that went ahead"] = world.num_landed_ahead;
  result.tally["rows that went ahead in vain"] = world.num_dropped_ahead;
  Finish(world, result);
}

void RunStreams(World& world, const StreamOptions& options, int num_events, bool trace,
                SimulationResult& result) {
  if (trace) world.Trace();
  Streams streams(world, options);
  streams.Run(num_events);
  result.tally = {{"good", streams.num_good()},         {"bad", streams.num_bad()},
                  {"refused", streams.num_refused()},   {"skipped", streams.num_skipped()},
                  {"replaced", streams.num_replaced()}, {"overflows", streams.num_overflows()}};
  Finish(world, result);
}

// Sites of two ranks; a lone one comes back before its last call is forgotten.
template <Executor kExecutor>
void RunStreamsOfOneWorker(uint64_t seed, Sabotage sabotage, bool trace, SimulationResult& result) {
  WorldOptions options;
  options.engine = {.staging_bytes = uint64_t{1} << 20, .stream_region_bytes = kPage};
  World world(options, seed, sabotage);
  RunStreams(world,
             {.executor = kExecutor,
              .num_sites = 1 + static_cast<uint32_t>(seed % 2),
              .drops = seed % 5 == 0,
              .seed = seed},
             3000, trace, result);
}

// Sites of four ranks on GPUs of three nodes.
void RunStreamsOfWorkers(uint64_t seed, Sabotage sabotage, bool trace, SimulationResult& result) {
  WorldOptions options{.num_workers = 3, .per_mille_of_moves_fail = 5};
  options.engine = {.staging_bytes = uint64_t{1} << 20, .device_staging_bytes = kDeviceBytes};
  World world(options, seed, sabotage);
  RunStreams(world,
             {.worker_of = {0, 1, 1, 2},
              .on_device = true,
              .num_sites = 3,
              .scans = false,
              .seed = seed,
              .overflows_every = 43,
              .lacks_plan_every = 53,
              .cut_every = 1200},
             8000, trace, result);
}

const Scenario kScenarios[] = {
    {"OneWorker",
     1500,
     RunOneWorker,
     {{"good", 1501}, {"failed", 1501}, {"cancelled pages", 101}, {"in several buffers", 501}}},
    {"Workers",
     120,
     RunWorkers,
     {{"good", 1001},
      {"failed", 501},
      {"revoked", 11},
      {"formations", 51},
      {"turns", 1001},
      {"cancelled", 11},
      {"cancelled pages", 11}}},
    {"TwoWorkers",
     150,
     RunSmallRows<2>,
     {{"good", 1001},
      {"failed", 501},
      {"rows that went ahead", 1001},
      {"rows that went ahead in vain", 101},
      {"formations", 51}}},
    {"ThreeWorkers",
     100,
     RunSmallRows<3>,
     {{"good", 1001},
      {"failed", 501},
      {"rows that went ahead", 1001},
      {"rows that went ahead in vain", 101},
      {"formations", 51}}},
    {"StreamsWorkerMoves",
     300,
     RunStreamsOfOneWorker<Executor::kWorker>,
     {{"good", 300 * 50 + 1}, {"bad", 301}, {"replaced", 301}, {"overflows", 301}}},
    {"StreamsRanksMove",
     300,
     RunStreamsOfOneWorker<Executor::kClient>,
     {{"good", 300 * 50 + 1}, {"bad", 301}, {"replaced", 301}, {"overflows", 301}}},
    {"StreamsOfWorkers",
     150,
     RunStreamsOfWorkers,
     {{"good", 150 * 200 + 1},
      {"refused", 150 * 10 + 1},
      {"skipped", 151},
      {"formations", 150 * 3 + 1}}},
};

constexpr Planted kPlanted[] = {
    {"OneWorker", Sabotage::kDropAnswer, "DropAnswer", "progress"},
    {"OneWorker", Sabotage::kDoubleAnswer, "DoubleAnswer", "answers"},
    {"OneWorker", Sabotage::kFlipOutcome, "FlipOutcome", "records"},
    {"OneWorker", Sabotage::kOtherCause, "OtherCause", "agreement"},
    {"OneWorker", Sabotage::kDecideTwice, "DecideTwice", "records"},
    {"OneWorker", Sabotage::kAnswerUndecided, "AnswerUndecided", "records"},
    {"OneWorker", Sabotage::kSharedRegion, "SharedRegion", "exclusion"},
    {"OneWorker", Sabotage::kForgetDeadlines, "ForgetDeadlines", "deadlines"},
    {"OneWorker", Sabotage::kLoseRecord, "LoseRecord", "return"},
    {"OneWorker", Sabotage::kForgetProcess, "ForgetProcess", "arenas"},
    {"OneWorker", Sabotage::kKeepArenas, "KeepArenas", "return"},
    {"OneWorker", Sabotage::kShareArenas, "ShareArenas", "arenas"},
    {"OneWorker", Sabotage::kSpreadDeath, "SpreadDeath", "isolation"},
    {"OneWorker", Sabotage::kForgetEagerBuffers, "ForgetEagerBuffers", "eager buffers"},
    {"OneWorker", Sabotage::kLateEagerBuffers, "LateEagerBuffers", "eager buffers"},
    {"OneWorker", Sabotage::kWrongEagerBuffer, "WrongEagerBuffer", "eager buffers"},
    {"OneWorker", Sabotage::kEarlyPulled, "EarlyPulled", "eager buffers"},
    {"OneWorker", Sabotage::kRegionInEagerBuffers, "RegionInEagerBuffers", "exclusion"},
    {"OneWorker", Sabotage::kManyEagerBuffers, "ManyEagerBuffers", "eager buffers"},
    {"OneWorker", Sabotage::kForgetEnded, "ForgetEnded", "agreement"},
    {"Workers", Sabotage::kLoseMessage, "LoseMessage", "order"},
    {"Workers", Sabotage::kSwapMessages, "SwapMessages", "order"},
    {"Workers", Sabotage::kForgetRevoke, "ForgetRevoke", "progress"},
    {"Workers", Sabotage::kFlipDecision, "FlipDecision", "agreement"},
    {"Workers", Sabotage::kLateRows, "LateRows", "exclusion"},
    {"Workers", Sabotage::kPhantomRows, "PhantomRows", "truth"},
    {"Workers", Sabotage::kSharedWire, "SharedWire", "exclusion"},
    {"Workers", Sabotage::kForgetBases, "ForgetBases", "progress"},
    {"Workers", Sabotage::kFarBases, "FarBases", "reach"},
    {"Workers", Sabotage::kWrongExecution, "WrongExecution", "pairing"},
    {"Workers", Sabotage::kSkipTurn, "SkipTurn", "order"},
    {"Workers", Sabotage::kForgetTokens, "ForgetTokens", "order"},
    {"Workers", Sabotage::kForgetCancel, "ForgetCancel", "return"},
    {"TwoWorkers", Sabotage::kFlipDecision, "FlipDecision", "agreement"},
    {"TwoWorkers", Sabotage::kLandAside, "LandAside", "truth"},
    {"TwoWorkers", Sabotage::kKeepRows, "KeepRows", "return"},
    {"TwoWorkers", Sabotage::kForgetLeadersWord, "ForgetLeadersWord", "progress"},
    {"ThreeWorkers", Sabotage::kFlipDecision, "FlipDecision", "agreement"},
    {"ThreeWorkers", Sabotage::kForgetRowsLanded, "ForgetRowsLanded", "progress"},
    {"StreamsWorkerMoves", Sabotage::kAnswerAtOnce, "AnswerAtOnce", "order"},
    {"StreamsWorkerMoves", Sabotage::kSpeakUnmapped, "SpeakUnmapped", "mapping"},
    {"StreamsWorkerMoves", Sabotage::kLeaveOpen, "LeaveOpen", "progress"},
    {"StreamsWorkerMoves", Sabotage::kForgetStream, "ForgetStream", "progress"},
    {"StreamsWorkerMoves", Sabotage::kTellLate, "TellLate", "truth"},
    {"StreamsRanksMove", Sabotage::kAnswerAtOnce, "AnswerAtOnce", "order"},
    {"StreamsRanksMove", Sabotage::kSpeakUnmapped, "SpeakUnmapped", "mapping"},
    {"StreamsRanksMove", Sabotage::kLeaveOpen, "LeaveOpen", "progress"},
    {"StreamsRanksMove", Sabotage::kTellLate, "TellLate", "truth"},
    {"StreamsRanksMove", Sabotage::kStageUngated, "StageUngated", "exclusion"},
    {"StreamsRanksMove", Sabotage::kStageLate, "StageLate", "exclusion"},
    {"StreamsOfWorkers", Sabotage::kLoseMessage, "LoseMessage", "progress"},
    {"StreamsOfWorkers", Sabotage::kForgetUnsynchronised, "ForgetUnsynchronised", "progress"},
    {"StreamsOfWorkers", Sabotage::kForgetCause, "ForgetCause", "truth"},
    {"StreamsOfWorkers", Sabotage::kForgetStreamCall, "ForgetStreamCall", "progress"},
    {"StreamsOfWorkers", Sabotage::kForgetDemand, "ForgetDemand", "truth"},
};

}  // namespace

std::span<const Scenario> Scenarios() { return kScenarios; }
std::span<const Planted> PlantedBugs() { return kPlanted; }

SimulationResult Simulate(const Scenario& scenario, uint64_t seed, Sabotage sabotage, bool trace) {
  SimulationResult result;
  scenario.run(seed, sabotage, trace, result);
  return result;
}

std::string Explain(const Scenario& scenario, uint64_t seed, Sabotage sabotage) {
  const SimulationResult result = Simulate(scenario, seed, sabotage, /*trace=*/true);
  return absl::StrCat(scenario.name, ", EPD_SIM_SEED=", seed, ": ", result.violation.invariant,
                      ": ", result.violation.what, "\n", result.options, "\nthe last steps:\n  ",
                      absl::StrJoin(result.last_steps, "\n  "));
}

}  // namespace epd::world
