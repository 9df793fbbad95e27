// Goal: whatever clients write into their slots and other nodes' workers say, in any order, the engine answers each use
// at most once, records before it answers, and keeps its regions apart.
#include <deque>
#include <map>
#include <set>
#include <string>
#include <variant>

#include "daemon/worker/engine/exchange.h"
#include "tests/fuzz/input.h"

namespace epd {
namespace {

constexpr uint32_t kRanks = 3;  // 0 and 1 here; in a group on two nodes 2 is elsewhere.
constexpr Incarnation kSelf{100};
constexpr Incarnation kOther{101};
constexpr Incarnation kThird{102};
constexpr int kMaxEvents = 400;
constexpr size_t kMaxOpen = 16;

class World {
 public:
  explicit World(fuzz::Input& in) : in_(in) {
    for (uint64_t group : {1, 2, 3}) Start(group, 1);
    for (int i = 0; i < kMaxEvents && !in_.empty(); ++i) {
      Step();
      Perform();
      EPD_FUZZ_CHECK(exchange_.num_open_operations() <= kMaxOpen);
    }
    exchange_.EndEverything(absl::UnavailableError("the end"), now_);
    Perform();
    exchange_.Tick(now_ + absl::Hours(24));
    Perform();
    EPD_FUZZ_CHECK(open_uses_.empty());
  }

 private:
  static SessionId SessionOf(uint32_t rank) { return SessionId(rank + 1); }

  static bool HasThird(uint64_t group, uint64_t formation) {
    return group == 3 && formation % 2 == 1;
  }
  static const char* NodeOf(bool local, uint64_t group, uint64_t formation, uint32_t rank) {
    if (local) return "here";
    return HasThird(group, formation) && rank == 1 ? "third" : "there";
  }

  // Group 1 is on this node; 2 is led here, 3 by the other one of two nodes, or of three.
  void Start(uint64_t group, uint64_t formation) {
    GroupSpec spec;
    spec.name = "g";
    spec.num_ranks = kRanks;
    spec.num_experts = 4;
    spec.max_tokens_per_rank = 16;
    spec.recv_capacity_per_rank = 64;
    spec.hidden = 8;
    spec.top_k = 2;
    spec.max_token_dtype = Dtype::kFloat32;
    spec.executor = group == 1 && formation % 2 == 0 ? Executor::kWorker : Executor::kClient;
    TenantStart start{.group = GroupId(group),
                      .epoch = Epoch(1),
                      .formation = Formation(formation),
                      .spec = spec,
                      .members = {},
                      .bases = {},
                      .base_cause = absl::AbortedError("before")};
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const bool local = group == 1 || (group == 2) == (rank < 2);
      if (local) exchange_.AddSession(SessionOf(rank));
      start.members.push_back(RankHolder{.rank = Rank(rank),
                                         .node = NodeId{NodeOf(local, group, formation, rank)},
                                         .session = local ? SessionOf(rank) : SessionId(),
                                         .arena_index = 0,
                                         .host = "h",
                                         .pid = 7,
                                         .client_name = {}});
    }
    if (group != 1) {
      start.nodes = {{NodeId{"here"}, kSelf, "a:1"}, {NodeId{"there"}, kOther, "b:1"}};
      if (HasThird(group, formation)) start.nodes.push_back({NodeId{"third"}, kThird, "c:1"});
    }
    (void)exchange_.StartTenant(std::move(start), now_);
    Perform();
  }

  // Mostly sound, or nothing would get past the first check; then bytes from the input go over it.
  shm::SlotRequest Request() {
    shm::SlotRequest request = {};
    request.step = static_cast<shm::Step>(in_.Below(9));
    request.kind = static_cast<shm::Kind>(in_.Below(7));
    if (shm::IsAnnounce(request.step)) {
      request.announce.demand = in_.Below(3) * 60;
      request.announce.client = in_.Below(4);
      request.announce.eager_buffer = in_.Below(16);
    } else if (shm::IsStreamStep(request.step)) {
      request.stream.announce_slot = in_.Below(4);
      request.stream.move_report = in_.Below(2) == 0 ? ~uint64_t{0} : in_.Take<uint64_t>();
    } else {
      request.operation.op_id = last_operation_.value - in_.Below(3);
    }
    request.group_id = 1 + in_.Below(3);
    request.epoch = 1;
    request.formation = 1;
    request.rank = in_.Below(kRanks);
    request.program[0] = static_cast<uint8_t>(in_.Below(2));
    request.execution = in_.Below(4);
    request.ordinal = in_.Below(3);
    request.top_k = 2;
    request.alignment = 1;
    request.num_tokens = 4;
    request.stage_bytes = 16;
    if (request.kind != shm::Kind::kPrepare) {
      request.dtype = 1;
      request.row_bytes = 32;
      request.plan_id = 1;
      request.recv_capacity = 64;
      request.stage_bytes = 5000;
    }
    for (uint32_t patches = in_.Below(8); patches > 0; --patches) {
      const size_t at = in_.Take<uint16_t>() % sizeof request;
      reinterpret_cast<uint8_t*>(&request)[at] = in_.Take<uint8_t>();
    }
    return request;
  }

  PeerMessage Message() {
    PeerMessage message;
    message.step =
        static_cast<LeaderStep>(1 + in_.Below(static_cast<uint32_t>(LeaderStep::kRowsOver)));
    message.group = GroupId(1 + in_.Below(4));
    message.formation = Formation(1 + in_.Below(2));
    message.clock = in_.Below(2) == 0 ? in_.Take<uint8_t>() : in_.Take<uint64_t>();
    message.key.execution.program[0] = static_cast<uint8_t>(in_.Below(2));
    message.key.execution.number = in_.Below(4);
    message.key.ordinal = in_.Below(3);
    message.key.named = in_.Below(2) == 1;
    message.name = in_.Text();
    message.number = in_.Below(2) == 0 ? in_.Below(6) : in_.Take<uint64_t>();
    message.ticket = {in_.Take<uint8_t>(), in_.Below(2) == 0 ? kSelf : kOther};
    message.bytes = in_.Below(2) == 0 ? 4096 * in_.Below(8) : in_.Take<uint64_t>();
    message.failures_seen = in_.Take<uint8_t>();
    for (uint32_t said = in_.Below(4); said > 0; --said) {
      message.said.emplace_back(Rank(in_.Below(4)), CopyAnnouncement(Request()));
    }
    if (in_.Below(2) == 0) message.cause = absl::InternalError(in_.Text());
    return message;
  }

  void Step() {
    switch (in_.Below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        TakeUse();
        break;
      case 5:
      case 6:
      case 7:
        exchange_.Receive(Sender(), Message(), now_);
        break;
      case 8:
        exchange_.RowsLanded(Operation(), Rank(in_.Below(4)), now_);
        break;
      case 9:
        exchange_.RowsRefused(Operation(), Rank(in_.Below(4)), absl::DataLossError("x"), now_);
        break;
      case 10:
        now_ += absl::Milliseconds(in_.Take<uint16_t>());
        exchange_.Tick(now_);
        break;
      case 11:
        Rare();
        break;
    }
  }

  void Rare() {
    const GroupId group(1 + in_.Below(3));
    switch (in_.Below(5)) {
      case 0:
        exchange_.EndTenant(group, Formation(formation_), absl::AbortedError("ended"), now_);
        break;
      case 1:
        exchange_.DrainTenant(group, Formation(formation_), now_);
        break;
      case 2:
        exchange_.PeerLost(in_.Below(2) == 0 ? kOther : kThird, absl::UnavailableError("lost"),
                           now_);
        break;
      case 3:
        Start(group.value, ++formation_);
        break;
      case 4: {
        const ExchangeSnapshot snapshot = exchange_.Snapshot(now_);
        (void)exchange_.Past(group, 10, 20, now_);
        break;
      }
    }
  }

  Incarnation Sender() {
    constexpr Incarnation kSenders[] = {Incarnation(5), kThird, kOther, kOther};
    return kSenders[in_.Below(4)];
  }

  PeerOperation Operation() { return {GroupId(1 + in_.Below(4)), Formation(1), in_.Below(6)}; }

  void TakeUse() {
    const shm::SlotRequest request = Request();
    // A client takes a slot again only when its use was answered.
    const Submission submission{
        .session = SessionOf(in_.Below(kRanks)), .slot = in_.Below(4), .claim = ++claim_};
    for (const Submission& open : open_uses_) {
      if (open.session == submission.session && open.slot == submission.slot) return;
    }
    open_uses_.insert(submission);
    exchange_.Take(submission, request, now_);
  }

  void Perform() {
    if (!making_.empty() && in_.Below(2) == 1) EndPages();
    for (Effects effects = exchange_.TakeEffects(); !effects.empty();
         effects = exchange_.TakeEffects()) {
      for (const Effect& effect : effects) {
        std::visit([this](const auto& one) { Do(one); }, effect);
      }
    }
  }

  void Do(const AnswerSubmission& e) {
    EPD_FUZZ_CHECK(open_uses_.erase(e.submission) == 1);
    if (e.operation) last_operation_ = e.operation;
  }
  void Do(const OpenRecord& e) { EPD_FUZZ_CHECK(records_.emplace(e.operation, false).second); }
  void Do(const DecideRecord& e) {
    EPD_FUZZ_CHECK(records_.contains(e.operation) && !records_[e.operation]);
    records_[e.operation] = true;
  }
  void Do(const CloseRecord& e) { EPD_FUZZ_CHECK(records_.erase(e.operation) == 1); }
  void Do(const CommitPages& e) {
    EPD_FUZZ_CHECK(e.range.offset + e.range.bytes <= kStaging);
    making_.push_back(e.operation);
    if (in_.Below(2) == 0) EndPages();
  }
  void Do(const CancelPages& e) {
    EPD_FUZZ_CHECK(records_.contains(e.operation) && records_[e.operation]);
    const auto making = std::find(making_.begin(), making_.end(), e.operation);
    if (making == making_.end() || in_.Below(2) == 0) return;  // Something of it is under way.
    making_.erase(making);
    exchange_.PagesCommitted(e.operation, absl::CancelledError("x"), now_);
  }
  // Of the one that waits longest.
  void EndPages() {
    const OperationId operation = making_.front();
    making_.pop_front();
    const bool fails = in_.Below(16) == 1;
    exchange_.PagesCommitted(
        operation, fails ? absl::ResourceExhaustedError("no page") : absl::OkStatus(), now_);
  }
  void Do(const MoveRows& e) { exchange_.RowsMoved(e.operation, absl::OkStatus(), now_); }
  void Do(const CreateArenas& e) { EPD_FUZZ_CHECK(arenas_.insert(e.set).second); }
  void Do(const DropArenas& e) { EPD_FUZZ_CHECK(arenas_.erase(e.set) == 1); }
  void Do(const OpenWire& e) { EPD_FUZZ_CHECK(wires_.insert(e.operation).second); }
  void Do(const CloseWire& e) { EPD_FUZZ_CHECK(wires_.erase(e.operation) == 1); }
  void Do(const SendRowsAhead& e) {
    EPD_FUZZ_CHECK(e.destinations.contains(kOther) && !e.destinations.contains(kSelf));
    EPD_FUZZ_CHECK(!e.stages.empty());
    if (in_.Below(8) == 1) {
      exchange_.RowsAheadRefused(e.operation, e.stages[0].rank, absl::DataLossError("x"), now_);
    } else {
      exchange_.RowsAheadSent(e.operation, now_);
    }
  }
  void Do(const LandRows& e) {
    EPD_FUZZ_CHECK(e.arena >= 0 && e.offset + kBuffer <= kNumBuffers * kBuffer);
  }
  template <typename Other>
  void Do(const Other&) {}

  static constexpr uint64_t kStaging = 1 << 20;
  static constexpr uint64_t kBuffer = 8 << 10;
  static constexpr uint32_t kNumBuffers = 2;
  fuzz::Input& in_;
  Exchange exchange_{
      {.staging_bytes = kStaging,
       .max_open_operations = kMaxOpen,
       .eager = {.buffer_bytes = kBuffer, .few_buffers = kNumBuffers, .pool_share = 4},
       .self = kSelf}};
  absl::Time now_ = absl::UnixEpoch();
  uint64_t formation_ = 1;
  uint32_t claim_ = 0;
  std::deque<OperationId> making_;  // Pages that are not there yet.
  OperationId last_operation_{1};
  std::set<Submission> open_uses_;
  std::map<OperationId, bool> records_;
  std::set<ArenaSetId> arenas_;
  std::set<PeerOperation> wires_;
};

}  // namespace
}  // namespace epd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  epd::fuzz::Input in(data, size);
  const epd::World world(in);
  return 0;
}
