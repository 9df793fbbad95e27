#include "client/c/direct_call.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "proto/epd/v1/text.h"

namespace epd::client {
namespace {

// Arenas end with the area.
shm::DirectArea* FindArea(const Formation::Arena& arena) {
  if (arena.mapping == nullptr || arena.device != nullptr) return nullptr;
  const uint64_t bytes = arena.bytes();
  if (bytes < sizeof(shm::DirectArea) || bytes % alignof(shm::DirectArea) != 0) return nullptr;
  return reinterpret_cast<shm::DirectArea*>(arena.data() + bytes - sizeof(shm::DirectArea));
}

int64_t Nanoseconds(Clock::time_point time) { return time.time_since_epoch().count(); }

}  // namespace

shm::DirectArea& DirectCall::own() const { return *FindArea(formation_.arenas[rank_]); }

const shm::DirectArea& DirectCall::AreaOf(uint32_t rank) const {
  return *FindArea(formation_.arenas[rank]);
}

uint32_t DirectCall::PutRoutes(std::span<const int32_t> routes, uint32_t count) const {
  shm::DirectArea& area = own();
  // The same on all ranks, so that they ask the worker together.
  if (routes.size() > shm::kDirectExperts ||
      formation_.spec.max_tokens_per_rank > shm::kMaxDirectTokens ||
      area.num_route_lines.load(std::memory_order_relaxed) != shm::kRouteLines ||
      formation_.arenas[rank_].bytes() < sizeof(shm::DirectTail)) {
    return 0;
  }
  const auto fits = [](int32_t count) { return count <= int32_t{UINT16_MAX}; };
  if (!std::all_of(routes.begin(), routes.end(), fits)) return 0;
  const uint32_t num_lines = shm::NumRouteLines(static_cast<uint32_t>(routes.size()));
  if (area.next_route_line > shm::kRouteLines - num_lines) area.next_route_line = 0;
  shm::RouteLine* const lines = reinterpret_cast<shm::RouteLine*>(&area) - shm::kRouteLines;
  const std::span<shm::RouteLine> next(lines + area.next_route_line, num_lines);
  const uint32_t taken = area.taken.load(std::memory_order_acquire);
  const bool free = std::none_of(next.begin(), next.end(), [taken](const shm::RouteLine& line) {
    return shm::IsUntaken(taken, line.count);
  });
  if (!free) return 0;
  for (size_t e = 0; e < routes.size(); ++e) {
    shm::RouteLine& line = next[e / shm::kExpertsPerLine];
    line.count = count;
    line.of_expert[e % shm::kExpertsPerLine] = static_cast<uint16_t>(routes[e]);
  }
  const uint32_t first = area.next_route_line;
  area.next_route_line += num_lines;
  return first + 1;
}

bool DirectCall::Name(const shm::SlotRequest& request, DirectPrograms::Turn turn) {
  call_.group_id = request.group_id;
  call_.epoch = request.epoch;
  call_.formation = request.formation;
  std::memcpy(call_.program, request.program, sizeof call_.program);
  call_.execution = turn.execution;
  call_.ordinal = request.ordinal;
  call_.occurrence = request.occurrence;
  call_.generation = turn.generation;
  call_.dtype = request.dtype;
  call_.alignment = request.alignment;
  call_.top_k = static_cast<uint16_t>(request.top_k);
  call_.kind = static_cast<uint8_t>(request.kind);
  call_.has_weights = static_cast<uint8_t>(request.has_weights);
  call_.row_bytes = request.row_bytes;
  call_.plan_id = request.plan_id;
  call_.spec_hash = request.spec_hash;
  return call_.top_k == request.top_k;
}

bool DirectCall::Publish(const shm::SlotRequest& request, DirectPrograms::Turn turn,
                         const Said& call) {
  for (const Formation::Arena& arena : formation_.arenas) {
    if (FindArea(arena) == nullptr) return false;
  }
  if (!Name(request, turn)) return false;
  counts_.assign(formation_.arenas.size(), 0);
  shm::DirectArea& area = own();
  MutexLock lock(pool_.publish_mutex());
  const uint64_t gate = area.gate.load(std::memory_order_relaxed);
  // A program learns that its generation is over by such a call, and of many programs they would take all lines for routes.
  if (shm::GateGeneration(gate) != turn.generation) return false;
  const uint32_t before = shm::GateCount(gate);
  const uint32_t count = shm::NextCount(before);
  const uint32_t untaken = before - area.taken.load(std::memory_order_acquire);
  bool has_room =
      untaken < shm::kDirectRecords - 1 && pool_.HasRoomToPublish(&area, count, shm::kDirectLook);
  uint32_t routes = 0;
  if (has_room && request.kind == shm::Kind::kPrepare) {
    routes = PutRoutes(call.routes, count);
    has_room = routes != 0;
  }
  if (!has_room) {
    area.asked.store(shm::HashOf(call_), std::memory_order_relaxed);
    return false;
  }
  pool_.NotePublished(&area, count);
  count_ = count;
  shm::DirectRecord& said = record();
  // Whatever stood here is over: its peers see that it does not stand before they see anything else.
  said.word.store(shm::RecordWord(count_, shm::DirectState::kUnused), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  said.call = call_;
  said.eager_buffer = call.eager_buffer;
  said.has_name = request.has_name;
  said.published_ns = Nanoseconds(Clock::now());
  said.stage_bytes = request.stage_bytes;
  said.num_tokens = request.num_tokens;
  said.recv_capacity = request.recv_capacity;
  said.demand = request.announce.demand;
  said.rank = rank_;
  said.raw_execution = request.execution;
  said.announced = 0;
  said.routes = routes;
  said.num_experts = static_cast<uint32_t>(call.routes.size());
  said.padded_rows = 0;
  text::Write(call.name, said.name);
  said.word.store(shm::RecordWord(count_, shm::DirectState::kPublished), std::memory_order_release);
  if (!shm::PublishDirect(area.gate, turn.generation, before)) {
    SetState(shm::DirectState::kWithdrawn);
    pool_.ForgetPublication(&area, count_);
    count_ = 0;
    return false;
  }
  counts_[rank_] = count_;
  return true;
}

void DirectCall::SetState(shm::DirectState state) const {
  record().word.store(shm::RecordWord(count_, state), std::memory_order_seq_cst);
}

bool DirectCall::Look() {
  bool all = true;
  for (uint32_t rank = 0; rank < counts_.size(); ++rank) {
    if (counts_[rank] != 0) continue;
    const shm::DirectArea& area = AreaOf(rank);
    const uint32_t count = shm::FindDirect(area, call_);
    counts_[rank] = count;
    if (count == 0) {
      all = false;
    } else if (shm::IsHandedOver(area.records[count % shm::kDirectRecords].word.load(
                   std::memory_order_seq_cst))) {
      someone_asked_ = true;
    }
  }
  return all;
}

bool DirectCall::SomeoneAsks(uint64_t hash) const {
  for (uint32_t rank = 0; rank < counts_.size(); ++rank) {
    if (counts_[rank] == 0 && AreaOf(rank).asked.load(std::memory_order_relaxed) == hash)
      return true;
  }
  return false;
}

DirectCall::Met DirectCall::Await(Clock::time_point deadline, Clock::time_point until) {
  const auto seen = [this] { return someone_asked_ ? Met::kNo : Met::kYes; };
  if (Look()) return seen();
  const uint64_t hash = shm::HashOf(call_);
  do {
    const Clock::time_point now = Clock::now();
    if (now >= deadline || SomeoneAsks(hash)) return Met::kNo;
    if (now >= until) return Met::kNotYet;
    sched_yield();
  } while (!Look());
  return seen();
}

uint32_t DirectCall::HandOver() {
  record().announced = 1;
  SetState(shm::DirectState::kHandedOver);
  return count_;
}

bool DirectCall::AllHavePublished() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return Look();
}

void DirectCall::Withdraw() {
  SetState(shm::DirectState::kWithdrawn);
  // Before anything is written over the rows.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  pool_.EndPublication(&own(), count_);
}

uint32_t DirectCall::EagerBufferOf(uint32_t rank) const {
  return AreaOf(rank).records[counts_[rank] % shm::kDirectRecords].eager_buffer;
}

bool DirectCall::RowsStand() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  for (uint32_t rank = 0; rank < counts_.size(); ++rank) {
    const shm::DirectRecord& said = AreaOf(rank).records[counts_[rank] % shm::kDirectRecords];
    if (!shm::Stands(said.word.load(std::memory_order_relaxed), counts_[rank])) return false;
  }
  return true;
}

void DirectCall::Note(Clock::time_point ended) const {
  shm::DirectRecord& said = record();
  int64_t first = INT64_MAX;
  int64_t last = INT64_MIN;
  for (uint32_t rank = 0; rank < counts_.size(); ++rank) {
    const int64_t at = AreaOf(rank).records[counts_[rank] % shm::kDirectRecords].published_ns;
    first = std::min(first, at);
    if (at <= last) continue;
    last = at;
    said.last_rank = rank;
  }
  said.ended_ns = Nanoseconds(ended);
  // A peer may have written anything.
  (void)__builtin_sub_overflow(last, said.published_ns, &said.waited_ns);
  (void)__builtin_sub_overflow(last, first, &said.gathered_ns);
}

void DirectCall::Finish(Clock::time_point ended, uint32_t padded_rows) {
  Note(ended);
  record().padded_rows = padded_rows;
  SetState(shm::DirectState::kDone);
}

std::function<bool()> DirectCall::MakeIsFree(std::shared_ptr<const Formation> formation,
                                             const DirectCall& call) {
  std::weak_ptr<const Mapping> own = formation->arenas[call.rank_].mapping;
  // The pool outlives what it keeps.
  return [weak = std::weak_ptr<const Formation>(formation), own = std::move(own),
          count = call.count_, counts = call.counts_, area = &call.own(), pool = &call.pool_] {
    const std::shared_ptr<const Formation> living = weak.lock();
    if (living != nullptr) {
      for (uint32_t r = 0; r < counts.size(); ++r) {
        const shm::DirectArea* area = FindArea(living->arenas[r]);
        const auto& word = area->records[counts[r] % shm::kDirectRecords].word;
        if (!shm::HasRead(word.load(std::memory_order_acquire), counts[r])) return false;
      }
      pool->EndPublication(area, count);
      return true;
    }
    // Who still reads will find that the rows do not stand.
    if (const std::shared_ptr<const Mapping> mapping = own.lock()) {
      Formation::Arena arena;
      arena.mapping = mapping;
      arena.own = true;
      std::atomic<uint64_t>& word = FindArea(arena)->records[count % shm::kDirectRecords].word;
      uint64_t done = shm::RecordWord(count, shm::DirectState::kDone);
      word.compare_exchange_strong(done, shm::RecordWord(count, shm::DirectState::kWithdrawn),
                                   std::memory_order_seq_cst);
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    pool->EndPublication(area, count);
    return true;
  };
}

}  // namespace epd::client
