// Which executions of a tenant's programs may still run: bases, failed ones, ended generations.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/execution.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/announcement.h"

namespace epd {

// Bounds on what hostile or broken clients can make the worker remember.
inline constexpr size_t kMaxPrograms = 65536;         // Of one tenant.
inline constexpr size_t kMaxFailedExecutions = 4096;  // Of one tenant.
inline constexpr size_t kMaxCutOffs = 32;             // Of one program.
inline constexpr uint64_t kMaxExecution = uint64_t{1} << 62;

// Remembers, for one formation, why an execution cannot run any more, so that a rank that comes
// late gets the cause that the others got, at once. An execution ends early when one of its
// operations failed (Fail), or with all others when a generation ends (EndGeneration): then every
// execution up to the highest that any rank has begun fails, program by program, and the first
// above it is the first of the new generation. Not thread-safe.
class ExecutionHistory {
 public:
  // `bases`: as in StartTenant; raw executions below them fail with `base_cause`.
  ExecutionHistory(uint32_t num_ranks, const std::vector<ExecutionBase>& bases,
                   absl::Status base_cause);

  // `rank` begins, or goes on with, raw execution `raw` of `program`. With `named`, executions are
  // independent of each other and a rank may begin them in any order.
  //   INVALID_ARGUMENT    the number is above kMaxExecution.
  //   RESOURCE_EXHAUSTED  kMaxPrograms are known.
  //   else                the cause with which this execution failed.
  absl::StatusOr<Execution> Enter(Rank rank, const ProgramId& program, bool named, uint64_t raw);

  // Later Enters of the execution fail with `cause`. `may_come`: the ranks that may still ask.
  // Nothing happens if it has failed already. False: more than kMaxFailedExecutions are remembered;
  // the caller ends the generation, which forgets them.
  bool Fail(const Execution& execution, bool named, const absl::Status& cause,
            const std::set<Rank>& may_come);

  // Ends the generation: every execution begun so far, by any rank, fails with `cause` unless it
  // failed with its own before.
  void EndGeneration(const absl::Status& cause);

  // Ends the generation, in which ranks ran different programs, each of them told: none is late, so
  // no rank will come with what only others have begun. The next execution of a program without a
  // name is the same one for every rank, however many of them each has begun.
  void EndDivergedGeneration(const absl::Status& cause);

  // Whether the execution has not failed.
  bool Runs(const Execution& execution) const;

  bool Knows(const ProgramId& program) const { return programs_.contains(program); }
  // What it remembers, roughly.
  size_t bytes() const {
    return programs_.size() * (sizeof(Program) + num_ranks_ * sizeof(uint64_t));
  }
  // Every program, of a formation in which nothing runs any more.
  void Forget() { *this = ExecutionHistory(num_ranks_, {}, base_cause_); }

  uint64_t generation() const { return generation_; }
  size_t num_failed_remembered() const { return num_failed_; }

 private:
  struct Failed {
    absl::Status cause;
    bool named = false;
    std::set<Rank> may_come;
  };
  struct CutOff {
    uint64_t end = 0;  // Executions below it, and not below an earlier one's, fail with `cause`.
    absl::Status cause;
  };
  // Executions that only others began: `now` of them before those from the raw number `from` on
  // (counted from the base), `before` of them before earlier ones.
  struct Skipped {
    uint64_t from = 0;
    uint64_t now = 0;
    uint64_t before = 0;

    uint64_t At(uint64_t raw) const { return raw >= from ? now : before; }
  };
  struct Program {
    std::vector<uint64_t> base;    // [num_ranks], or empty: all 0.
    std::vector<uint64_t> begun;   // [num_ranks]: one above the highest raw number, from the base.
    std::vector<Skipped> skipped;  // [num_ranks], or empty.
    bool named = false;
    uint64_t num_begun = 0;  // One above the highest begun by any rank.
    std::vector<CutOff> cut_offs;
    std::map<uint64_t, Failed> failed;
  };

  absl::StatusOr<Program*> FindOrAdd(const ProgramId& program);
  void ForgetPassed(Program& program, Rank rank, uint64_t number, bool named);

  uint32_t num_ranks_;
  absl::Status base_cause_;
  std::map<ProgramId, Program> programs_;
  size_t num_failed_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace epd
