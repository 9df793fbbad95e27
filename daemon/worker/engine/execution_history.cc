#include "daemon/worker/engine/execution_history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace epd {

ExecutionHistory::ExecutionHistory(uint32_t num_ranks, const std::vector<ExecutionBase>& bases,
                                   absl::Status base_cause)
    : num_ranks_(num_ranks), base_cause_(std::move(base_cause)) {
  if (base_cause_.ok())
    base_cause_ = absl::AbortedError("the execution began before the group was re-formed");
  for (const ExecutionBase& entry : bases) {
    if (entry.rank.value >= num_ranks_) continue;
    Program& program = programs_[entry.program];
    program.base.resize(num_ranks_);
    program.base[entry.rank.value] = entry.base;
  }
}

absl::StatusOr<ExecutionHistory::Program*> ExecutionHistory::FindOrAdd(const ProgramId& id) {
  auto found = programs_.find(id);
  if (found == programs_.end()) {
    if (programs_.size() >= kMaxPrograms) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the group has run ", kMaxPrograms,
          " different programs or names since it was formed, the most there may be; use "
          "static names, or create the group anew"));
    }
    found = programs_.try_emplace(id).first;
  }
  return &found->second;
}

absl::StatusOr<Execution> ExecutionHistory::Enter(Rank rank, const ProgramId& id, bool named,
                                                  uint64_t raw) {
  if (raw > kMaxExecution) {
    return absl::InvalidArgumentError(
        absl::StrCat("execution number ", raw, " is above ", kMaxExecution));
  }
  absl::StatusOr<Program*> added = FindOrAdd(id);
  if (!added.ok()) return added.status();
  Program& program = **added;
  const uint64_t base = program.base.empty() ? 0 : program.base[rank.value];
  if (raw < base) return base_cause_;
  program.named = named;
  program.begun.resize(num_ranks_);
  uint64_t& begun = program.begun[rank.value];
  begun = std::max(begun, raw - base + 1);
  const uint64_t skipped = program.skipped.empty() ? 0 : program.skipped[rank.value].At(raw - base);
  const uint64_t number = raw - base + skipped;

  const auto failed = program.failed.find(number);
  absl::Status cause;
  if (failed != program.failed.end()) {
    cause = failed->second.cause;
  } else {
    const auto cut = std::find_if(program.cut_offs.begin(), program.cut_offs.end(),
                                  [&](const CutOff& c) { return number < c.end; });
    if (cut != program.cut_offs.end()) cause = cut->cause;
  }
  program.num_begun = std::max(program.num_begun, number + 1);
  ForgetPassed(program, rank, number, named);
  if (!cause.ok()) return cause;
  return Execution{.program = id, .number = number};
}

bool ExecutionHistory::Runs(const Execution& execution) const {
  const auto found = programs_.find(execution.program);
  if (found == programs_.end() || found->second.failed.contains(execution.number)) return false;
  const std::vector<CutOff>& cut_offs = found->second.cut_offs;
  return cut_offs.empty() || execution.number >= cut_offs.back().end;
}

// A rank runs the executions of a program one after the other, so it never asks about those below
// the one it is in. Names promise no order: only the execution itself is told and forgotten.
void ExecutionHistory::ForgetPassed(Program& program, Rank rank, uint64_t number, bool named) {
  auto it = named ? program.failed.find(number) : program.failed.begin();
  while (it != program.failed.end() && (named ? it->first == number : it->first < number)) {
    it->second.may_come.erase(rank);
    if (it->second.may_come.empty()) {
      it = program.failed.erase(it);
      --num_failed_;
    } else {
      ++it;
    }
  }
}

bool ExecutionHistory::Fail(const Execution& execution, bool named, const absl::Status& cause,
                            const std::set<Rank>& may_come) {
  if (may_come.empty()) return true;
  absl::StatusOr<Program*> program = FindOrAdd(execution.program);
  if (!program.ok()) return false;
  const auto [unused, added] = (*program)->failed.try_emplace(
      execution.number, Failed{.cause = cause, .named = named, .may_come = may_come});
  if (added) ++num_failed_;
  return num_failed_ <= kMaxFailedExecutions;
}

void ExecutionHistory::EndGeneration(const absl::Status& cause) {
  ++generation_;
  const bool forget = num_failed_ > kMaxFailedExecutions;
  if (forget) num_failed_ = 0;
  for (auto& [unused, program] : programs_) {
    if (forget) program.failed.clear();
    const uint64_t last = program.cut_offs.empty() ? 0 : program.cut_offs.back().end;
    if (program.num_begun <= last) continue;
    program.cut_offs.push_back(CutOff{.end = program.num_begun, .cause = cause});
    // A rank that is more than kMaxCutOffs generations behind learns a later cause.
    if (program.cut_offs.size() > kMaxCutOffs) program.cut_offs.erase(program.cut_offs.begin());
  }
}

void ExecutionHistory::EndDivergedGeneration(const absl::Status& cause) {
  EndGeneration(cause);
  for (auto& [unused, program] : programs_) {
    if (program.named || program.begun.empty()) continue;
    program.skipped.resize(num_ranks_);
    for (uint32_t r = 0; r < num_ranks_; ++r) {
      Skipped& skipped = program.skipped[r];
      const uint64_t from = program.begun[r];
      skipped = {.from = from, .now = program.num_begun - from, .before = skipped.At(from)};
    }
  }
}

}  // namespace epd
