#include "client/program/runs.h"

#include <utility>

namespace epd::program {
namespace {

// Far more than a framework keeps under way; only old runs without calls in flight are forgotten.
constexpr std::size_t kMaxRuns = 128;

bool HasBegun(const Runs::Call& call) { return call.begun != nullptr && call.begun->join != 0; }

}  // namespace

const Runs::Run* Runs::Find(const Call& call) const {
  // The newest first: nearly always it is the one.
  for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
    if (run->id == call.execution && run->executable == call.executable) return &*run;
  }
  return nullptr;
}

Runs::Run* Runs::Find(const Call& call) {
  return const_cast<Run*>(std::as_const(*this).Find(call));
}

Runs::Run& Runs::Add(const Call& call, std::uint64_t join) {
  while (runs_.size() >= kMaxRuns && runs_.front().in_flight == 0) runs_.pop_front();
  Run& run = runs_.emplace_back();
  run.executable = call.executable;
  run.id = call.execution;
  run.join = join;
  run.program = call.program;
  return run;
}

bool Runs::Overlaps(const Run& self, std::uint32_t rank) const {
  // Nearly always, and the search is the dearest part of a small call.
  if (&self == &runs_.back() && in_flight_ == self.in_flight) return false;
  bool newer = false;
  for (const Run& run : runs_) {
    if (&run == &self) {
      newer = true;
      continue;
    }
    if (run.join != self.join || run.program != self.program) continue;
    const auto found = run.ranks.find(rank);
    if (found == run.ranks.end()) continue;
    if (!found->second.numbered) continue;
    if (newer || found->second.in_flight > 0) return true;
  }
  return false;
}

bool Runs::GoesOn(std::uint64_t begun_join, std::uint64_t join) const {
  return begun_join == join || (carried_to_ == join && begun_join >= carried_from_);
}

bool Runs::IsStale(const Call& call, std::uint64_t join) const {
  if (HasBegun(call)) return !GoesOn(call.begun->join, join);
  const Run* const run = Find(call);
  return run != nullptr && run->join < join;
}

Runs::Outcome Runs::Start(const Call& call, std::uint64_t join, const Begin& begin,
                          CallNumber* number) {
  if (HasBegun(call)) {
    if (!GoesOn(call.begun->join, join)) return Outcome::kStale;
    if (call.begun->join != join) {
      *call.begun = {call.begun->struct_size, join, begin(call.rank, call.program)};
    }
    *number = {call.begun->number, call.occurrence == 0 ? 0 : call.occurrence - 1};
    return Outcome::kOk;
  }
  Run* run = Find(call);
  if (run == nullptr) run = &Add(call, join);
  if (run->join < join) return Outcome::kStale;
  if (!call.named) run->program = call.program;
  const bool overlaps = !call.named && Overlaps(*run, call.rank);
  RankRun& rank = run->ranks[call.rank];
  ++rank.in_flight;
  ++run->in_flight;
  ++in_flight_;
  if (call.named) return Outcome::kOk;
  if (!rank.numbered) rank.execution = begin(call.rank, run->program);
  rank.numbered = true;
  number->execution = rank.execution;
  number->occurrence = call.occurrence == 0 ? rank.occurrences[call.site]++ : call.occurrence - 1;
  if (call.begun != nullptr) *call.begun = {call.begun->struct_size, join, number->execution};
  return overlaps ? Outcome::kOverlap : Outcome::kOk;
}

void Runs::End(const Call& call) {
  Run* const run = Find(call);
  if (run == nullptr) return;
  --run->ranks[call.rank].in_flight;
  --run->in_flight;
  --in_flight_;
}

void Runs::CarryOver(std::uint64_t join) {
  if (carried_to_ != join) carried_from_ = join;
  carried_to_ = join + 1;
  for (Run& run : runs_) {
    if (run.join != join) continue;
    run.join = join + 1;
    for (auto& [number, rank] : run.ranks) rank.numbered = false;
  }
}

void Runs::Condemn(const Call& call, std::uint64_t join) {
  if (Find(call) == nullptr) Add(call, join);
}

}  // namespace epd::program
