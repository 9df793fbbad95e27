// One worker of the world (world/world.h) for directed tests: what it was asked for, and requests that are sound as they are.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/daemon/worker/world/make_request.h"
#include "tests/unit/daemon/worker/world/world.h"

namespace epd {

inline constexpr uint64_t kPool = 1 << 20;

// Sessions 1..R hold ranks 0..R-1 of group `kGroup`. Every invariant of the world is checked.
class ExchangeHarness {
 private:
  world::World world_;
  world::Worker& worker_ = world_.worker(0);

 public:
  explicit ExchangeHarness(ExchangeOptions options = {.staging_bytes = kPool})
      : world_({.engine = options}) {}
  ~ExchangeHarness() { EXPECT_EQ(world_.violation().invariant, "") << world_.violation().what; }

  static GroupSpec Spec(uint32_t num_ranks) { return MakeSpec(num_ranks); }
  static SessionId SessionOf(uint32_t rank) { return SessionId(rank + 1); }

  TenantStart Start(const GroupSpec& spec, GroupId group = kGroup, uint64_t formation = 1) {
    TenantStart start{.group = group,
                      .epoch = Epoch(3),
                      .formation = Formation(formation),
                      .spec = spec,
                      .members = {},
                      .bases = {},
                      .base_cause = absl::AbortedError("before the re-formation")};
    for (uint32_t r = 0; r < spec.num_ranks; ++r) {
      exchange.AddSession(SessionOf(r));
      start.members.push_back(MakeMember(r, SessionOf(r)));
    }
    return start;
  }
  void StartTenant(const GroupSpec& spec, GroupId group = kGroup, uint64_t formation = 1) {
    ASSERT_TRUE(exchange.StartTenant(Start(spec, group, formation), now).ok());
    Perform();
  }

  shm::SlotRequest Request(uint32_t rank, uint64_t execution = 0) const {
    return MakePrepare({.rank = rank, .execution = execution});
  }
  shm::SlotRequest Dispatch(uint32_t rank, uint64_t execution = 0) const {
    shm::SlotRequest request = MakeDispatch({.rank = rank, .execution = execution});
    request.ordinal = 1;
    request.has_weights = 1;
    request.announce.demand = 10;
    request.stage_bytes = 5000;
    return request;
  }
  static void SetName(shm::SlotRequest& request, const std::string& name) {
    epd::SetName(request, name);
  }

  // Takes a submission of the rank's own session, or of `session`.
  Submission Take(const shm::SlotRequest& request,
                  std::optional<SessionId> session = std::nullopt) {
    const Submission submission{
        .session = session.value_or(SessionOf(request.rank)), .slot = 0, .claim = ++claim_};
    return Take(submission, request);
  }
  Submission Take(const Submission& submission, const shm::SlotRequest& request) {
    world_.Take(worker_, submission, request);
    return submission;
  }
  // One that every rank has published for itself.
  Submission TakeMet(const shm::SlotRequest& request) {
    const Submission submission{.session = SessionOf(request.rank), .slot = 0, .claim = ++claim_};
    worker_.open[submission] = request.step;
    exchange.Take(submission, request, now, /*met=*/true);
    Perform();
    return submission;
  }
  Submission Step(uint32_t rank, OperationId operation, shm::Step step) {
    shm::SlotRequest request = Request(rank);
    request.step = step;
    request.operation.op_id = operation.value;
    return Take(request);
  }
  std::vector<Submission> AnnounceAll(const std::vector<shm::SlotRequest>& requests) {
    std::vector<Submission> submissions;
    for (const shm::SlotRequest& request : requests) submissions.push_back(Take(request));
    return submissions;
  }

  // Publish and pulled of two ranks.
  void Finish(OperationId operation) {
    for (const shm::Step step : {shm::Step::kPublish, shm::Step::kPulled}) {
      for (uint32_t rank = 0; rank < 2; ++rank) Step(rank, operation, step);
    }
  }

  bool answered(const Submission& submission) const { return answers.contains(submission); }
  absl::StatusCode code(const Submission& submission) const {
    return answered(submission) ? answers.at(submission).status.code() : absl::StatusCode::kUnknown;
  }
  std::string text(const Submission& submission) const {
    return answered(submission) ? std::string(answers.at(submission).status.message())
                                : "(not answered)";
  }
  OperationId operation(const Submission& submission) const {
    return answers.at(submission).operation;
  }

  void Advance(absl::Duration by) {
    now += by;
    world_.Tick();
  }
  // Does what the engine asks for, pages included; rows move when the test says so.
  void Perform() { world_.Perform(worker_); }
  void RowsMoved(OperationId moved, const absl::Status& status = absl::OkStatus()) {
    exchange.RowsMoved(moved, status, now);
    Perform();
  }
  void EndTenant(const absl::Status& cause) {
    exchange.EndTenant(kGroup, Formation(1), cause, now);
    Perform();
  }
  void SessionDead(SessionId session, const absl::Status& cause, bool process_alive = false) {
    exchange.SessionDead(session, cause, process_alive, now);
    Perform();
  }

  Exchange& exchange = worker_.exchange;
  absl::Time& now = world_.now;
  absl::Status& commit_status = world_.commit_status;
  std::map<Submission, AnswerSubmission>& answers = worker_.answers;
  std::map<Submission, std::vector<uint8_t>>& eager = worker_.eager;
  std::map<OperationId, absl::Status>& decided = worker_.decided;
  std::set<OperationId>& records = worker_.records;
  std::map<Submission, OperationId>& links = worker_.links;
  std::vector<world::Move>& moves = worker_.moves;
  std::vector<std::vector<uint16_t>>& told_counts = worker_.told_counts;
  std::vector<std::string>& logs = worker_.logs;
  std::vector<EvictSession>& evicted = worker_.evicted;
  std::vector<Region>& commits = worker_.commits;
  std::vector<Trim>& trims = worker_.trims;
  std::set<ArenaSetId>& arenas = worker_.arenas;
  std::vector<Formation>& ready = worker_.ready;
  std::vector<Formation>& drained = worker_.drained;
  int& num_count_routes = worker_.num_count_routes;
  std::vector<ArenaSetId>& direct_ends = worker_.direct_ends;
  std::vector<AwaitDirect>& awaited = worker_.awaited;
  bool& direct_busy = worker_.direct_busy;
  std::vector<AwaitStreams>& awaited_streams = worker_.awaited_streams;
  bool& streams_busy = worker_.streams_busy;
  std::vector<uint64_t>& count_offsets = worker_.count_offsets;

 private:
  uint32_t claim_ = 1;
};

}  // namespace epd
