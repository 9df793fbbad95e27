#include "client/jax/runs.h"

#include <utility>

namespace epd::jax {
namespace {

// Far more than XLA keeps under way; only old runs without calls in flight are forgotten.
constexpr std::size_t kMaxRuns = 128;

}  // namespace

const Runs::Run* Runs::Find(const Call& call) const {
  // The newest first: nearly always it is the one.
  for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
    if (run->run_id == call.run_id && run->executable == call.site.executable->id()) return &*run;
  }
  return nullptr;
}

Runs::Run* Runs::Find(const Call& call) {
  return const_cast<Run*>(std::as_const(*this).Find(call));
}

Runs::Run& Runs::Add(const Call& call, std::uint64_t membership) {
  while (runs_.size() >= kMaxRuns && runs_.front().in_flight == 0) runs_.pop_front();
  Run& run = runs_.emplace_back();
  run.executable = call.site.executable->id();
  run.run_id = call.run_id;
  run.membership = membership;
  run.program = call.site.executable->Seal();
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
    if (run.membership != self.membership || run.program != self.program) continue;
    const auto found = run.ranks.find(rank);
    if (found == run.ranks.end()) continue;
    if (!found->second.numbered) continue;
    if (newer || found->second.in_flight > 0) return true;
  }
  return false;
}

bool Runs::IsStale(const Call& call, std::uint64_t membership) const {
  const Run* const run = Find(call);
  return run != nullptr && run->membership < membership;
}

Runs::Outcome Runs::Start(const Call& call, std::uint64_t membership, const Begin& begin,
                          CallNumber* number) {
  Run* run = Find(call);
  if (run == nullptr) run = &Add(call, membership);
  if (run->membership < membership) return Outcome::kStale;
  const bool named = !call.site.key.empty();
  const bool overlaps = !named && Overlaps(*run, call.rank);
  RankRun& rank = run->ranks[call.rank];
  ++rank.in_flight;
  ++run->in_flight;
  ++in_flight_;
  if (named) return Outcome::kOk;
  if (!rank.numbered) rank.execution = begin(call.rank, run->program);
  rank.numbered = true;
  number->execution = rank.execution;
  number->occurrence = rank.occurrences[call.site.ordinal]++;
  return overlaps ? Outcome::kOverlap : Outcome::kOk;
}

void Runs::End(const Call& call) {
  Run* const run = Find(call);
  if (run == nullptr) return;
  --run->ranks[call.rank].in_flight;
  --run->in_flight;
  --in_flight_;
}

void Runs::Condemn(const Call& call, std::uint64_t membership) {
  if (Find(call) == nullptr) Add(call, membership);
}

}  // namespace epd::jax
