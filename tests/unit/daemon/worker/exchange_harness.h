// The engine with a fake time and surroundings that do what it asks and remember it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/worker/engine/exchange.h"
#include "proto/epd/v1/text.h"

namespace epd {

inline constexpr GroupId kGroup{7};
inline constexpr uint64_t kPool = 1 << 20;

// Sessions 1..R hold ranks 0..R-1 of group `kGroup`.
class ExchangeHarness {
 public:
  explicit ExchangeHarness(ExchangeOptions options = {.staging_bytes = kPool})
      : exchange(options) {}

  static GroupSpec Spec(uint32_t num_ranks) {
    GroupSpec spec;
    spec.name = "g";
    spec.num_ranks = num_ranks;
    spec.num_experts = 4;
    spec.max_tokens_per_rank = 16;
    spec.recv_capacity_per_rank = 64;
    spec.hidden = 8;
    spec.top_k = 2;
    spec.max_token_dtype = Dtype::kFloat32;
    spec.executor = Executor::kClient;
    return spec;
  }

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
      start.members.push_back(RankHolder{.rank = Rank(r),
                                         .node = {},
                                         .session = SessionOf(r),
                                         .arena_index = 0,
                                         .host = "host" + std::to_string(r),
                                         .pid = static_cast<int32_t>(100 + r),
                                         .client_name = {}});
    }
    return start;
  }
  void StartTenant(const GroupSpec& spec, GroupId group = kGroup, uint64_t formation = 1) {
    ASSERT_TRUE(exchange.StartTenant(Start(spec, group, formation), now).ok());
    Perform();
  }

  // A prepare of execution `execution` that is sound as it is.
  shm::SlotRequest Request(uint32_t rank, uint64_t execution = 0) const {
    shm::SlotRequest request = {};
    request.step = shm::Step::kAnnounce;
    request.kind = shm::Kind::kPrepare;
    request.group_id = kGroup.value;
    request.epoch = 3;
    request.formation = 1;
    request.rank = rank;
    request.program[0] = 1;
    request.execution = execution;
    request.top_k = 2;
    request.alignment = 1;
    request.num_tokens = 4;
    request.stage_bytes = 16;
    return request;
  }
  shm::SlotRequest Dispatch(uint32_t rank, uint64_t execution = 0) const {
    shm::SlotRequest request = Request(rank, execution);
    request.kind = shm::Kind::kDispatch;
    request.ordinal = 1;
    request.dtype = 1;
    request.row_bytes = 32;
    request.plan_id = 1;
    request.has_weights = 1;
    request.recv_capacity = 64;
    request.announce.demand = 10;
    request.stage_bytes = 5000;
    return request;
  }
  static void SetName(shm::SlotRequest& request, const std::string& name) {
    request.has_name = 1;
    std::memset(request.program, 0, sizeof request.program);
    std::memcpy(request.program, name.data(), std::min(name.size(), sizeof request.program));
    text::Write(name, request.announce.name);
  }

  // Takes a use of the rank's own session, or of `session`.
  Submission Take(const shm::SlotRequest& request,
                  std::optional<SessionId> session = std::nullopt) {
    const Submission submission{
        .session = session.value_or(SessionOf(request.rank)), .slot = 0, .claim = ++claim_};
    exchange.Take(submission, request, now);
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
    exchange.Tick(now);
    Perform();
  }

  // Does what the engine asks for, pages included; rows move when the test says so.
  void Perform() {
    for (Effects effects = exchange.TakeEffects(); !effects.empty();
         effects = exchange.TakeEffects()) {
      for (const Effect& effect : effects) {
        std::visit([this](const auto& one) { Do(one); }, effect);
      }
    }
  }

  Exchange exchange;
  absl::Time now = absl::UnixEpoch();
  absl::Status commit_status;
  std::map<Submission, AnswerSubmission> answers;
  std::map<Submission, std::vector<uint8_t>> eager;
  std::map<OperationId, absl::Status> decided;
  std::set<OperationId> records;
  std::map<Submission, OperationId> links;
  std::vector<MoveRows> moves;
  std::vector<std::string> logs;
  std::vector<EvictSession> evicted;
  std::vector<Region> commits;
  std::vector<Trim> trims;
  std::set<ArenaSetId> arenas;
  std::vector<Formation> ready;
  std::vector<Formation> drained;
  int num_count_routes = 0;
  std::vector<uint64_t> count_offsets;

 private:
  void Do(const LinkSubmission& e) { links[e.submission] = e.operation; }
  void Do(const OpenRecord& e) {
    EXPECT_TRUE(records.insert(e.operation).second) << "an operation id was used twice";
  }
  void Do(const DecideRecord& e) {
    EXPECT_TRUE(records.contains(e.operation)) << "decided without a record";
    EXPECT_TRUE(decided.emplace(e.operation, e.status).second) << "decided twice";
  }
  void Do(const CloseRecord& e) { EXPECT_EQ(records.erase(e.operation), 1u); }
  void Do(const NameEagerBuffers& e) {
    EXPECT_FALSE(answers.contains(e.submission)) << "told the eager buffers after the answer";
    EXPECT_EQ(e.operation, links[e.submission]);
    eager[e.submission] = e.eager_buffer_of_rank;
  }
  void Do(const AnswerSubmission& e) {
    EXPECT_TRUE(answers.emplace(e.submission, e).second) << "a use was answered twice";
    if (e.operation && !e.status.ok()) {
      EXPECT_TRUE(decided.contains(e.operation)) << "answered before the outcome was recorded";
    }
  }
  void Do(const CommitPages& e) {
    commits.push_back(e.range);
    trims.insert(trims.end(), e.trims.begin(), e.trims.end());
    exchange.PagesCommitted(e.operation, commit_status, now);
  }
  void Do(const CreateArenas& e) { EXPECT_TRUE(arenas.insert(e.set).second); }
  void Do(const DropArenas& e) { EXPECT_EQ(arenas.erase(e.set), 1u); }
  void Do(const ReportTenantReady& e) { ready.push_back(e.formation); }
  void Do(const ReportTenantDrained& e) { drained.push_back(e.formation); }
  void Do(const MoveRows& e) { moves.push_back(e); }
  void Do(const CountRoutes& e) {
    ++num_count_routes;
    count_offsets = e.offsets;
  }
  void Do(const SendToPeer&) {}
  void Do(const OpenWire&) {}
  void Do(const SendRows&) {}
  void Do(const TakeTurn&) {}
  void Do(const CancelMove&) {}
  void Do(const CloseWire&) {}
  void Do(const ReportTenantBroken&) {}
  void Do(const EvictSession& e) { evicted.push_back(e); }
  void Do(const LogLine& e) { logs.push_back(e.text); }

  uint32_t claim_ = 1;
};

}  // namespace epd
