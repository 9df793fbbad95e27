#include "daemon/worker/engine/execution_history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

// What an allocation takes beside its bytes, and a node of a map beside its value.
constexpr size_t kHeap = 16;
constexpr size_t kNode = 32 + kHeap;
// Known programs may grow to so many times what is allowed when one is added.
constexpr uint64_t kGrowth = 2;

size_t Heap(size_t bytes) { return bytes == 0 ? 0 : bytes + kHeap; }

size_t BytesOf(const absl::Status& cause) {
  return sizeof cause + 3 * kHeap + cause.message().size();
}

}  // namespace

ExecutionHistory::ExecutionHistory(uint32_t num_ranks, const std::vector<ExecutionBase>& bases,
                                   absl::Status base_cause)
    : num_ranks_(num_ranks),
      base_cause_(base_cause.ok()
                      ? absl::AbortedError("the execution began before the group was re-formed")
                      : std::move(base_cause)) {
  for (const ExecutionBase& entry : bases) {
    if (entry.rank.value >= num_ranks_) continue;
    Program& program = programs_.try_emplace(entry.program, num_ranks_, 0, 0).first->second;
    const auto after = std::lower_bound(program.base.begin(), program.base.end(),
                                        std::pair(entry.rank, uint64_t{0}));
    if (after != program.base.end() && after->first == entry.rank) {
      after->second = entry.base;
    } else {
      program.base.insert(after, {entry.rank, entry.base});
    }
  }
  for (const auto& [unused, program] : programs_) Count(0, program.bytes());
}

void ExecutionHistory::JoinShare(std::shared_ptr<ProgramMemory> of_uid) {
  LeaveShare();
  share_ = std::move(of_uid);
  share_->used += bytes_;
}

void ExecutionHistory::LeaveShare() {
  if (share_ != nullptr) share_->used -= bytes_;
  share_.reset();
}

void ExecutionHistory::Forget() {
  programs_.clear();
  ForgetFailures();
  causes_.clear();
  generation_ = num_diverged_ = 0;
  Count(bytes_, 0);
}

uint64_t ExecutionHistory::Program::BaseOf(Rank rank) const {
  const auto found = std::lower_bound(base.begin(), base.end(), std::pair(rank, uint64_t{0}));
  return found == base.end() || found->first != rank ? 0 : found->second;
}

size_t ExecutionHistory::Program::bytes() const {
  size_t sum = sizeof(Programs::value_type) + kNode + Heap(base.capacity() * sizeof base[0]) +
               Heap(begun.bytes()) + Heap(cut_offs.capacity() * sizeof(CutOff));
  if (skipped != nullptr) {
    sum += Heap(sizeof(Skipped)) + Heap(skipped->from.bytes()) + Heap(skipped->now.bytes()) +
           Heap(skipped->before.bytes());
  }
  return sum;
}

size_t ExecutionHistory::BytesOf(const Failed& failed) const {
  return sizeof(decltype(failed_)::value_type) + kNode + Heap(num_ranks_ / 8 + 8) +
         epd::BytesOf(failed.cause);
}

size_t ExecutionHistory::BytesOf(const PackedNumbers& passed) {
  return sizeof(decltype(passed_)::value_type) + kNode + Heap(passed.bytes());
}

void ExecutionHistory::Count(size_t before, size_t now) {
  bytes_ = bytes_ - before + now;
  if (share_ != nullptr) share_->used = share_->used - before + now;
}

absl::Status ExecutionHistory::CheckRoom(uint64_t more, uint64_t factor) const {
  if (bytes_ + more > factor * kMaxProgramBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the group's ", programs_.size(), " programs and names of ", num_ranks_, " ranks take ",
        bytes_, " bytes of the worker's memory and ask for ", more, " more; the most is ",
        factor * kMaxProgramBytes, "; use static names, or create the group anew"));
  }
  if (share_ != nullptr && share_->used + more > factor * share_->max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", share_->uid, " with all its groups holds ", share_->used,
                     " bytes of the worker's memory for programs and names and asks for ", more,
                     " more; the most is ", factor * share_->max,
                     "; use static names, or end groups that are not needed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExecutionHistory::Programs::iterator> ExecutionHistory::FindOrAdd(
    const ProgramId& id) {
  const auto found = programs_.find(id);
  if (found != programs_.end()) return found;
  if (programs_.size() >= kMaxPrograms) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the group has run ", kMaxPrograms,
                     " different programs or names since it was formed, the most there may be; use "
                     "static names, or create the group anew"));
  }
  Program program(num_ranks_, generation_, num_diverged_);
  const size_t bytes = program.bytes();
  absl::Status room = CheckRoom(bytes + Heap(num_ranks_), 1);
  if (!room.ok()) return room;
  Count(0, bytes);
  return programs_.try_emplace(id, std::move(program)).first;
}

// At most, of an Enter.
size_t ExecutionHistory::GrowthOf(const Program& program, Rank rank, uint64_t raw) const {
  size_t growth = 0;
  if (program.generation < generation_) {
    const std::vector<CutOff>& cut_offs = program.cut_offs;
    if (cut_offs.size() == cut_offs.capacity())
      growth += Heap(std::max<size_t>(1, cut_offs.size()) * sizeof(CutOff));
    const bool skips = program.num_diverged < num_diverged_ && !program.named;
    if (skips && program.num_begun > 0)
      growth += Heap(sizeof(Skipped)) + 3 * Heap(num_ranks_ * sizeof(uint64_t));
  }
  if (raw >= program.begun.At(rank.value))
    growth += program.begun.BytesWith(rank.value, raw + 1) - program.begun.bytes();
  return growth;
}

absl::StatusOr<Execution> ExecutionHistory::Enter(Rank rank, const ProgramId& id, bool named,
                                                  uint64_t raw) {
  if (raw > kMaxExecution) {
    return absl::InvalidArgumentError(
        absl::StrCat("execution number ", raw, " is above ", kMaxExecution));
  }
  const absl::StatusOr<Programs::iterator> added = FindOrAdd(id);
  if (!added.ok()) return added.status();
  Program& program = (*added)->second;
  const uint64_t base = program.BaseOf(rank);
  if (raw < base) return base_cause_;
  const uint64_t from_base = raw - base;
  if (const size_t growth = GrowthOf(program, rank, from_base); growth > 0) {
    absl::Status room = CheckRoom(growth, kGrowth);
    if (!room.ok()) return room;
  }
  const size_t before = program.bytes();
  CatchUp(program);
  program.named = named;
  if (from_base >= program.begun.At(rank.value)) program.begun.Set(rank.value, from_base + 1);
  Count(before, program.bytes());
  const uint64_t skipped =
      program.skipped == nullptr ? 0 : program.skipped->At(rank.value, from_base);
  const Execution execution{.program = id, .number = from_base + skipped};
  const absl::Status cause = CauseOf(execution, program);
  program.num_begun = std::max(program.num_begun, execution.number + 1);
  ForgetPassed(execution, rank, named);
  if (!cause.ok()) return cause;
  return execution;
}

absl::Status ExecutionHistory::CauseOf(const Execution& execution, const Program& program) const {
  const auto failed = failed_.find(execution);
  if (failed != failed_.end()) return failed->second.cause;
  const auto cut = std::find_if(program.cut_offs.begin(), program.cut_offs.end(),
                                [&](const CutOff& one) { return execution.number < one.end; });
  if (cut == program.cut_offs.end()) return absl::OkStatus();
  const uint64_t oldest = generation_ - causes_.size();
  return causes_[std::max(cut->generation, oldest) - oldest];
}

uint64_t ExecutionHistory::EndOfFailed(const Program& program) const {
  if (program.generation < generation_) return program.num_begun;
  return program.cut_offs.empty() ? 0 : program.cut_offs.back().end;
}

bool ExecutionHistory::Runs(const Execution& execution) const {
  const auto found = programs_.find(execution.program);
  return found != programs_.end() && !failed_.contains(execution) &&
         execution.number >= EndOfFailed(found->second);
}

// A rank runs the executions of a program one after the other, so it never asks about those below
// the one it is in. Names promise no order: only the execution itself is told and forgotten.
void ExecutionHistory::ForgetPassed(const Execution& execution, Rank rank, bool named) {
  auto failure =
      named ? failed_.find(execution) : failed_.lower_bound({.program = execution.program});
  if (failure == failed_.end() || failure->first.program != execution.program) return;
  if (named) {
    Passes(failure, rank);
    return;
  }
  const auto [passed, added] = passed_.try_emplace(execution.program, num_ranks_);
  const size_t before = added ? 0 : BytesOf(passed->second);
  const uint64_t end_of_passed = passed->second.At(rank.value);
  if (execution.number > end_of_passed) passed->second.Set(rank.value, execution.number);
  Count(before, BytesOf(passed->second));
  failure = failed_.lower_bound({.program = execution.program, .number = end_of_passed});
  while (failure != failed_.end() && failure->first < execution) failure = Passes(failure, rank);
}

std::map<Execution, ExecutionHistory::Failed>::iterator ExecutionHistory::Passes(
    std::map<Execution, Failed>::iterator failure, Rank rank) {
  Failed& failed = failure->second;
  if (failed.may_come[rank.value]) {
    failed.may_come[rank.value] = false;
    --failed.num_may_come;
  }
  if (failed.num_may_come > 0) return std::next(failure);
  const ProgramId program = failure->first.program;
  Count(BytesOf(failed), 0);
  const auto next = failed_.erase(failure);
  const auto left = failed_.lower_bound({.program = program});
  const auto passed = passed_.find(program);
  const bool is_last = left == failed_.end() || left->first.program != program;
  if (is_last && passed != passed_.end()) {
    Count(BytesOf(passed->second), 0);
    passed_.erase(passed);
  }
  return next;
}

void ExecutionHistory::LookAgainFrom(const Execution& execution) {
  const auto passed = passed_.find(execution.program);
  if (passed == passed_.end()) return;
  std::vector<uint64_t> numbers(num_ranks_);
  for (uint32_t r = 0; r < num_ranks_; ++r)
    numbers[r] = std::min(passed->second.At(r), execution.number);
  const size_t before = BytesOf(passed->second);
  passed->second = PackedNumbers::Of(numbers);
  Count(before, BytesOf(passed->second));
}

void ExecutionHistory::ForgetFailures() {
  for (const auto& [unused, failed] : failed_) Count(BytesOf(failed), 0);
  for (const auto& [unused, passed] : passed_) Count(BytesOf(passed), 0);
  failed_.clear();
  passed_.clear();
}

bool ExecutionHistory::Fail(const Execution& execution, const absl::Status& cause,
                            std::vector<bool> may_come) {
  const auto num_may_come =
      static_cast<uint32_t>(std::count(may_come.begin(), may_come.end(), true));
  if (num_may_come == 0) return true;
  if (!FindOrAdd(execution.program).ok()) return false;
  const auto [entry, added] = failed_.try_emplace(execution);
  if (added) {
    Failed& failed = entry->second;
    failed.cause = cause;
    failed.may_come = std::move(may_come);
    failed.num_may_come = num_may_come;
    Count(0, BytesOf(failed));
    LookAgainFrom(execution);
  }
  return failed_.size() <= kMaxFailedExecutions && CheckRoom(0, kGrowth).ok();
}

void ExecutionHistory::EndGeneration(const absl::Status& cause) {
  if (failed_.size() > kMaxFailedExecutions || !CheckRoom(0, kGrowth).ok()) ForgetFailures();
  ++generation_;
  causes_.push_back(cause);
  Count(0, epd::BytesOf(cause));
  if (causes_.size() <= kMaxCauses) return;
  Count(epd::BytesOf(causes_.front()), 0);
  causes_.pop_front();
}

void ExecutionHistory::EndDivergedGeneration(const absl::Status& cause) {
  EndGeneration(cause);
  ++num_diverged_;
}

// Of several ended generations only the first one has executions of the program, and from the third diverged one on nothing
// changes.
void ExecutionHistory::CatchUp(Program& program) const {
  if (program.generation == generation_) return;
  std::vector<CutOff>& cut_offs = program.cut_offs;
  if (program.num_begun > (cut_offs.empty() ? 0 : cut_offs.back().end)) {
    cut_offs.push_back(CutOff{.end = program.num_begun, .generation = program.generation});
    if (cut_offs.size() > kMaxCutOffs) cut_offs.erase(cut_offs.begin());
  }
  const uint64_t num_diverged = num_diverged_ - program.num_diverged;
  if (!program.named && program.num_begun > 0) {
    for (uint64_t i = 0; i < std::min<uint64_t>(num_diverged, 2); ++i) Skip(program);
  }
  program.generation = generation_;
  program.num_diverged = num_diverged_;
}

void ExecutionHistory::Skip(Program& program) const {
  std::vector<uint64_t> from(num_ranks_);
  std::vector<uint64_t> now(num_ranks_);
  std::vector<uint64_t> before(num_ranks_);
  for (uint32_t r = 0; r < num_ranks_; ++r) {
    from[r] = program.begun.At(r);
    now[r] = program.num_begun - from[r];
    before[r] = program.skipped == nullptr ? 0 : program.skipped->At(r, from[r]);
  }
  if (program.skipped == nullptr) program.skipped = std::make_unique<Skipped>(num_ranks_);
  program.skipped->from = PackedNumbers::Of(from);
  program.skipped->now = PackedNumbers::Of(now);
  program.skipped->before = PackedNumbers::Of(before);
}

}  // namespace epd
