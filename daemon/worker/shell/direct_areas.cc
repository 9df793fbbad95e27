#include "daemon/worker/shell/direct_areas.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "daemon/worker/engine/cause_text.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

// As long as a call through the worker may hold its region after its outcome.
constexpr absl::Duration kPatience = absl::Seconds(30);
// Between two looks at all records of a set because one rank has little room: of a rank they take some 17 us, so that a worker
// spends a quarter of its time with them at most.
constexpr absl::Duration kShortestTake = absl::Microseconds(500);
constexpr absl::Duration kTakePerRank = absl::Microseconds(64);
// Between two looks at all sets, for as many as ask: a rank that has recorded nothing takes some 200 ns, so that this is a
// twentieth of the time.
constexpr absl::Duration kAllPerRank = absl::Microseconds(4);
// Of a user with many sets, whose looks would be more than a quarter together: a route to an expert costs 1, some 5 ns, and a record
// 130 ns. A look at a rank is not begun where the most that it can cost is not left.
constexpr uint64_t kCostOfRecord = 26;
constexpr uint64_t kMostOfRank =
    shm::kDirectRecords * kCostOfRecord + uint64_t{shm::kRouteLines} * shm::kExpertsPerLine;
constexpr uint64_t kPerSecond = 50'000'000;
constexpr uint64_t kBurst = 1'000'000;
// Between two looks for ranks that are still in a call, of which a client can keep one of many groups for as long.
constexpr absl::Duration kPollPause = absl::Milliseconds(1);
// A prepare's routes to an expert take some 5 ns to read and to count.
constexpr absl::Duration kTakePerExpert = absl::Nanoseconds(20);

shm::DirectState StateOf(uint64_t word) {
  return static_cast<shm::DirectState>(static_cast<uint32_t>(word));
}

absl::Time Monotonic(int64_t ns) { return absl::FromUnixNanos(ns); }

std::string NameOf(const shm::DirectRecord& record) {
  char name[sizeof record.name];  // A copy: the client may write on.
  std::memcpy(name, record.name, sizeof name);
  if (record.has_name != 0)
    return absl::StrCat("name=", text::Clean(text::Read(name), sizeof name));
  return absl::StrCat("program=",
                      absl::BytesToHexString(absl::string_view(
                          reinterpret_cast<const char*>(record.call.program), kDigestBytesShown)),
                      ScopeText(text::Read(name)));
}

DirectOutcome ToOutcome(const shm::DirectRecord& record, bool ended) {
  const shm::DirectCall& call = record.call;
  DirectOutcome outcome;
  outcome.group = GroupId(call.group_id);
  outcome.formation = Formation(call.formation);
  outcome.rank = Rank(record.rank);
  static_assert(sizeof call.program == sizeof(ProgramId));
  std::memcpy(outcome.key.execution.program.data(), call.program, sizeof call.program);
  outcome.key.execution.number = call.execution;
  outcome.key.ordinal = call.ordinal;
  outcome.key.occurrence = call.occurrence;
  outcome.key.named = record.has_name != 0;
  outcome.raw_execution = record.raw_execution;
  outcome.name = NameOf(record);
  outcome.said.dtype = call.dtype;
  outcome.said.has_weights = call.has_weights;
  outcome.said.top_k = call.top_k;
  outcome.said.alignment = call.alignment;
  outcome.said.row_bytes = call.row_bytes;
  outcome.said.plan_id = call.plan_id;
  outcome.said.spec_hash = call.spec_hash;
  outcome.said.kind = static_cast<shm::Kind>(call.kind);
  outcome.said.num_tokens = record.num_tokens;
  outcome.said.recv_capacity = record.recv_capacity;
  outcome.said.demand = record.demand;
  outcome.said.stage_bytes =
      std::min(record.stage_bytes, shm::kMaxEagerBuffers * shm::kEagerBufferBytes);
  outcome.ended = ended;
  outcome.announced = record.announced != 0;
  outcome.published_at = Monotonic(record.published_ns);
  outcome.ended_at = Monotonic(record.ended_ns);
  outcome.waited = absl::Nanoseconds(record.waited_ns);
  outcome.gathered = absl::Nanoseconds(record.gathered_ns);
  outcome.last_rank = record.last_rank;
  return outcome;
}

// Of the publication `count`, if it is a prepare. Lines of another one tell nothing.
void TakeRoutes(const shm::DirectTail& tail, uint32_t count, DirectOutcome& outcome) {
  // Each word is read once: the client may write on.
  const volatile shm::DirectRecord& record = tail.area.records[count % shm::kDirectRecords];
  const uint32_t said_experts = record.num_experts;
  const uint32_t num_experts = std::min(said_experts, shm::kDirectExperts);
  const uint32_t num_lines = shm::NumRouteLines(num_experts);
  const uint32_t first = record.routes - 1;
  if (outcome.said.kind != shm::Kind::kPrepare || first > shm::kRouteLines - num_lines) return;
  const absl::Span<const shm::RouteLine> lines(tail.route_lines + first, num_lines);
  if (!absl::c_all_of(lines, [&](const shm::RouteLine& line) { return line.count == count; }))
    return;
  outcome.routes.reserve(num_experts);
  for (uint32_t e = 0; e < num_experts; ++e) {
    outcome.routes.push_back(lines[e / shm::kExpertsPerLine].of_expert[e % shm::kExpertsPerLine]);
  }
  outcome.padded_rows = record.padded_rows;
}

}  // namespace

bool DirectAreas::Add(const ReportTenantReady& ready, uint32_t uid, std::vector<SessionId> sessions,
                      ArenaSet& set) {
  const TouchedUser::Scope touch(touched_, uid);
  if (set.num_arenas() == 0 || set.Direct(0) == nullptr) return false;
  if (sessions.size() != ready.ranks.size()) return false;  // Of several nodes.
  Ranks ranks{.set = ready.set, .sessions = std::move(sessions), .of_rank = {}};
  ranks.of_rank.resize(ready.ranks.size());
  Set& known = sets_[ready.set];
  known.uid = uid;
  known.areas.clear();
  for (size_t i = 0; i < ready.ranks.size(); ++i) {
    const uint32_t rank = ready.ranks[i].value;
    if (rank >= ranks.of_rank.size()) return false;
    known.areas.push_back(set.Direct(static_cast<int>(i)));
    ranks.of_rank[rank] = &known.areas.back()->area;
  }
  if (known.taken.empty()) {
    known.taken.resize(known.areas.size());
    for (shm::DirectTail* tail : known.areas) shm::EndDirect(tail->area.gate, known.generation);
  }
  ranks_[{ready.group, ready.formation}] = std::move(ranks);
  return true;
}

void DirectAreas::Drop(ArenaSetId id, absl::Time now, const Take& take) {
  if (const auto set = sets_.find(id); set != sets_.end()) {
    const TouchedUser::Scope touch(touched_, set->second.uid);
    TakeFromAll(set->second, now, take);
    sets_.erase(set);
  }
  std::erase_if(ranks_, [&](const auto& entry) { return entry.second.set == id; });
}

void DirectAreas::End(ArenaSetId id) {
  const auto set = sets_.find(id);
  if (set == sets_.end()) return;
  const TouchedUser::Scope touch(touched_, set->second.uid);
  uint32_t& generation = set->second.generation;
  generation = generation == UINT32_MAX ? 1 : generation + 1;
  for (shm::DirectTail* tail : set->second.areas) shm::EndDirect(tail->area.gate, generation);
}

uint32_t DirectAreas::Generation(ArenaSetId id) const {
  const auto set = sets_.find(id);
  return set == sets_.end() ? 0 : set->second.generation;
}

bool DirectAreas::HasMet(const shm::SlotRequest& request) const {
  if (request.step != shm::Step::kAnnounceStaged || request.announce.published == 0) return false;
  const auto found = ranks_.find({GroupId(request.group_id), Formation(request.formation)});
  if (found == ranks_.end() || request.rank >= found->second.of_rank.size()) return false;
  // Orders the claim of the announce before the looks: direct_area.h.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const shm::DirectRecord& own = found->second.of_rank[request.rank]
                                     ->records[request.announce.published % shm::kDirectRecords];
  shm::DirectCall call;
  std::memcpy(&call, &own.call, sizeof call);
  // The record is the rank's own, and so is the request: they are of one call, or it deceives itself.
  const bool same = call.group_id == request.group_id && call.formation == request.formation &&
                    call.ordinal == request.ordinal && call.occurrence == request.occurrence &&
                    std::memcmp(call.program, request.program, sizeof call.program) == 0;
  return same && std::all_of(found->second.of_rank.begin(), found->second.of_rank.end(),
                             [&](const shm::DirectArea* area) {
                               return shm::FindDirect(*area, call) != 0;
                             });
}

bool DirectAreas::IsOf(const shm::DirectArea& area, const DirectOutcome& outcome) const {
  const auto ranks = ranks_.find({outcome.group, outcome.formation});
  return ranks != ranks_.end() && outcome.rank.value < ranks->second.of_rank.size() &&
         ranks->second.of_rank[outcome.rank.value] == &area;
}

// A record is taken once it has ended, and those behind it wait; that a call has begun is said at once.
DirectAreas::Looked DirectAreas::TakeFrom(shm::DirectTail& tail, uint32_t& taken,
                                          const Take& take) const {
  shm::DirectArea& area = tail.area;
  Looked looked;
  const uint32_t count = shm::GateCount(area.gate.load(std::memory_order_acquire));
  if (count - taken > shm::kDirectRecords) taken = count - shm::kDirectRecords;
  bool in_order = true;
  for (uint32_t next = taken + 1; next != count + 1; ++next) {
    ++looked.records;
    const shm::DirectRecord& record = area.records[next % shm::kDirectRecords];
    const uint64_t word = record.word.load(std::memory_order_acquire);
    if (static_cast<uint32_t>(word >> 32) != next) {
      if (in_order) taken = next;
      continue;
    }
    in_order = in_order && shm::HasRead(word, next);
    const bool ended = in_order && StateOf(word) == shm::DirectState::kDone;
    if (ended || !in_order) {
      DirectOutcome outcome = ToOutcome(record, ended);
      if (ended) TakeRoutes(tail, next, outcome);
      looked.routes += outcome.routes.size();
      if (IsOf(area, outcome)) take(outcome);
    }
    if (in_order) taken = next;
  }
  area.taken.store(taken, std::memory_order_release);
  return looked;
}

// A look costs all records of all ranks, and a client can say that its area is full whenever it makes a call.
void DirectAreas::TakeIfMany(const shm::SlotRequest& request, absl::Time now, const Take& take) {
  const auto found = ranks_.find({GroupId(request.group_id), Formation(request.formation)});
  if (found == ranks_.end() || request.rank >= found->second.of_rank.size()) return;
  const auto set = sets_.find(found->second.set);
  if (set == sets_.end() || now < set->second.next_take) return;
  const std::vector<shm::DirectTail*>& areas = set->second.areas;
  const auto own = std::find_if(areas.begin(), areas.end(), [&](const shm::DirectTail* tail) {
    return &tail->area == found->second.of_rank[request.rank];
  });
  const uint32_t count = shm::GateCount((*own)->area.gate.load(std::memory_order_relaxed));
  const uint32_t many =
      request.kind == shm::Kind::kPrepare ? shm::kFewestRoutes : shm::kDirectRecords / 2;
  if (count - set->second.taken[static_cast<size_t>(own - areas.begin())] < many) return;
  TakeFromAll(set->second, now, take);
}

void DirectAreas::TakeFromAll(Set& set, absl::Time now, const Take& take) {
  Allowance& of_user = of_uid_.try_emplace(set.uid, kBurst, kPerSecond).first->second;
  uint64_t num_counted = 0;
  for (size_t n = 0; n < set.areas.size() && of_user.Left(now) >= kMostOfRank; ++n) {
    const size_t rank = std::exchange(set.first, (set.first + 1) % set.areas.size());
    const Looked looked = TakeFrom(*set.areas[rank], set.taken[rank], take);
    of_user.Take(looked.records * kCostOfRecord + looked.routes);
    num_counted += looked.routes;
  }
  set.next_take =
      now + std::max(kShortestTake, kTakePerRank * set.areas.size() + kTakePerExpert * num_counted);
}

void DirectAreas::TakeDue(absl::Time now, const Take& take) {
  for (auto& [unused, set] : sets_) {
    if (now < set.next_take) continue;
    const TouchedUser::Scope touch(touched_, set.uid);
    TakeFromAll(set, now, take);
  }
}

void DirectAreas::TakeAll(absl::Time now, const Take& take) {
  if (now < next_all_) return;
  size_t num_ranks = 0;
  for (auto& [unused, set] : sets_) {
    const TouchedUser::Scope touch(touched_, set.uid);
    TakeFromAll(set, now, take);
    num_ranks += set.areas.size();
  }
  next_all_ = now + kAllPerRank * num_ranks;
}

void DirectAreas::Await(const AwaitDirect& effect, absl::Time now) {
  awaited_.try_emplace({effect.group, effect.formation}, Awaited{.since = now});
}

bool DirectAreas::IsIdle(const Name& name, const Ranks& ranks,
                         const std::function<bool(SessionId)>& lives, size_t& rank) const {
  const TouchedUser::Scope touch(touched_, sets_.at(ranks.set).uid);
  for (; rank < ranks.of_rank.size(); ++rank) {
    if (!lives(ranks.sessions[rank])) continue;
    for (const shm::DirectRecord& record : ranks.of_rank[rank]->records) {
      const shm::DirectState state = StateOf(record.word.load(std::memory_order_acquire));
      const bool open =
          state == shm::DirectState::kPublished || state == shm::DirectState::kHandedOver;
      if (open && record.call.group_id == name.first.value &&
          record.call.formation == name.second.value) {
        return false;
      }
    }
  }
  return true;
}

void DirectAreas::Poll(absl::Time now, const std::function<bool(SessionId)>& lives,
                       const std::function<void(GroupId, Formation)>& idle) {
  if (now < next_poll_) return;
  next_poll_ = now + kPollPause;
  std::vector<Name> over;
  for (auto& [name, awaited] : awaited_) {
    const auto ranks = ranks_.find(name);
    if (ranks == ranks_.end() || now - awaited.since > kPatience ||
        IsIdle(name, ranks->second, lives, awaited.rank)) {
      over.push_back(name);
    }
  }
  for (const Name& name : over) {
    awaited_.erase(name);
    idle(name.first, name.second);
  }
}

}  // namespace epd
