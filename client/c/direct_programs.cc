#include "client/c/direct_programs.h"

#include <algorithm>

namespace epd::client {
namespace {

constexpr size_t kMaxPrograms = 4096;
constexpr uint32_t kMaxMissed = 8;
constexpr uint32_t kTryEvery = 32;

}  // namespace

void DirectPrograms::Learn(const Call& call, const Turn& told) {
  MutexLock lock(mutex_);
  if (programs_.size() >= kMaxPrograms) programs_.clear();
  Program& program = programs_[{call.rank, call.program}];
  program.raw_base = call.raw_execution;
  program.base = told.execution;
  program.generation = told.generation;
  Use(program, told.execution, call);
}

bool DirectPrograms::Use(Program& program, uint64_t execution, const Call& call) {
  if (execution < program.last) return false;
  if (execution > program.last) program.used.clear();
  program.last = execution;
  const std::pair<uint32_t, uint32_t> place{call.ordinal, call.occurrence};
  if (std::find(program.used.begin(), program.used.end(), place) != program.used.end())
    return false;
  program.used.push_back(place);
  return true;
}

std::optional<DirectPrograms::Turn> DirectPrograms::Begin(const Call& call) {
  MutexLock lock(mutex_);
  const auto found = programs_.find({call.rank, call.program});
  if (found == programs_.end() || found->second.generation == 0) return {};
  Program& program = found->second;
  if (call.raw_execution < program.raw_base) return {};
  const uint64_t execution = call.raw_execution - program.raw_base + program.base;
  if (!Use(program, execution, call)) return {};
  if (program.num_missed[call.prepares ? 1 : 0] >= kMaxMissed && execution % kTryEvery != 0)
    return {};
  return Turn{.execution = execution, .generation = program.generation};
}

void DirectPrograms::Note(const Call& call, bool met) {
  MutexLock lock(mutex_);
  const auto found = programs_.find({call.rank, call.program});
  if (found == programs_.end()) return;
  uint32_t& num_missed = found->second.num_missed[call.prepares ? 1 : 0];
  num_missed = met ? 0 : num_missed + 1;
}

}  // namespace epd::client
