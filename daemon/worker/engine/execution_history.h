// Which executions of a tenant's programs may still run: bases, failed ones, ended generations.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/execution.h"
#include "daemon/core/ids.h"
#include "daemon/worker/engine/announcement.h"
#include "daemon/worker/engine/packed_numbers.h"

namespace epd {

// Bounds on what hostile or broken clients can make the worker remember.
inline constexpr size_t kMaxPrograms = 65536;         // Of one tenant.
inline constexpr size_t kMaxFailedExecutions = 4096;  // Of one tenant.
inline constexpr size_t kMaxCutOffs = 32;             // Of one program.
inline constexpr size_t kMaxCauses = 256;             // Of a tenant's ended generations.
inline constexpr uint64_t kMaxExecution = uint64_t{1} << 62;
// Bytes of one tenant, and of all tenants of one uid that live: no program is added above it. What is known may grow to
// twice as much, so that a rank is not refused where others were not. 4,096 programs of 2,048 ranks in step take 9 MB.
inline constexpr uint64_t kMaxProgramBytes = uint64_t{32} << 20;
inline constexpr uint64_t kMaxProgramBytesOfUid = uint64_t{64} << 20;

// What the tenants of one uid remember of their programs, all together.
struct ProgramMemory {
  uint32_t uid = 0;
  uint64_t max = kMaxProgramBytesOfUid;
  uint64_t used = 0;
};

// Remembers, for one formation, why an execution cannot run any more, so that a rank that comes
// late gets the cause that the others got, at once. An execution ends early when one of its
// operations failed (Fail), or with all others when a generation ends (EndGeneration): then every
// execution up to the highest that any rank has begun fails, program by program, and the first
// above it is the first of the new generation. The end of a generation costs the same however many
// programs there are: each finds out when a rank next enters it, until when nothing of it changes.
// Not thread-safe.
class ExecutionHistory {
 public:
  // `bases`: as in StartTenant; raw executions below them fail with `base_cause`.
  ExecutionHistory(uint32_t num_ranks, const std::vector<ExecutionBase>& bases,
                   absl::Status base_cause);
  ~ExecutionHistory() { LeaveShare(); }
  ExecutionHistory(const ExecutionHistory&) = delete;
  ExecutionHistory& operator=(const ExecutionHistory&) = delete;

  // What it remembers counts as `of_uid`'s until LeaveShare.
  void JoinShare(std::shared_ptr<ProgramMemory> of_uid);
  void LeaveShare();

  // `rank` begins, or goes on with, raw execution `raw` of `program`. With `named`, executions are
  // independent of each other and a rank may begin them in any order.
  //   INVALID_ARGUMENT    the number is above kMaxExecution.
  //   RESOURCE_EXHAUSTED  kMaxPrograms are known, or they take too many bytes; nothing has begun.
  //   else                the cause with which this execution failed.
  absl::StatusOr<Execution> Enter(Rank rank, const ProgramId& program, bool named, uint64_t raw);

  // Later Enters of the execution fail with `cause`. `may_come`: [num_ranks] whether the rank may still ask.
  // Nothing happens if it has failed already. False: more than may be is remembered; the caller
  // ends the generation, which forgets what has failed.
  bool Fail(const Execution& execution, const absl::Status& cause, std::vector<bool> may_come);

  // Ends the generation: every execution begun so far, by any rank, fails with `cause` unless it
  // failed with its own before. A rank that is more than kMaxCauses generations behind, or
  // kMaxCutOffs in which its program ran, learns a later cause.
  void EndGeneration(const absl::Status& cause);

  // Ends the generation, in which ranks ran different programs, each of them told: none is late, so
  // no rank will come with what only others have begun. The next execution of a program without a
  // name is the same one for every rank, however many of them each has begun.
  void EndDivergedGeneration(const absl::Status& cause);

  // Whether the execution has not failed.
  bool Runs(const Execution& execution) const;

  bool Knows(const ProgramId& program) const { return programs_.contains(program); }
  // What it remembers.
  size_t bytes() const { return bytes_; }
  // Every program, of a formation in which nothing runs any more.
  void Forget();

  uint64_t generation() const { return generation_; }
  size_t num_failed_remembered() const { return failed_.size(); }

 private:
  struct Failed {
    absl::Status cause;
    std::vector<bool> may_come;  // [num_ranks]
    uint32_t num_may_come = 0;
  };
  struct CutOff {
    uint64_t end = 0;         // Executions below it, and not below an earlier one's, have failed
    uint64_t generation = 0;  // ... with the end of this generation.
  };
  // Executions that only others began: `now` of them before those from the raw number `from` on
  // (counted from the base), `before` of them before earlier ones.
  struct Skipped {
    explicit Skipped(uint32_t num_ranks) : from(num_ranks), now(num_ranks), before(num_ranks) {}
    uint64_t At(uint32_t rank, uint64_t raw) const {
      return raw >= from.At(rank) ? now.At(rank) : before.At(rank);
    }

    PackedNumbers from;
    PackedNumbers now;
    PackedNumbers before;
  };
  struct Program {
    Program(uint32_t num_ranks, uint64_t generation, uint64_t num_diverged)
        : begun(num_ranks), generation(generation), num_diverged(num_diverged) {}
    uint64_t BaseOf(Rank rank) const;
    size_t bytes() const;

    std::vector<std::pair<Rank, uint64_t>> base;  // In rank order; others have 0.
    PackedNumbers begun;  // [num_ranks] one above the highest raw number, from the base.
    std::unique_ptr<Skipped> skipped;  // Null: nothing, for all.
    bool named = false;
    uint64_t num_begun = 0;  // One above the highest begun by any rank.
    std::vector<CutOff> cut_offs;
    // It knows of the generations before this one, among them so many that ended diverged.
    uint64_t generation;
    uint64_t num_diverged;
  };
  using Programs = std::map<ProgramId, Program>;

  absl::StatusOr<Programs::iterator> FindOrAdd(const ProgramId& program);
  absl::Status CheckRoom(uint64_t more, uint64_t factor) const;
  void Count(size_t before, size_t now);
  size_t GrowthOf(const Program& program, Rank rank, uint64_t raw) const;
  // Learns of the generations that have ended since a rank entered it last.
  void CatchUp(Program& program) const;
  void Skip(Program& program) const;
  uint64_t EndOfFailed(const Program& program) const;
  absl::Status CauseOf(const Execution& execution, const Program& program) const;
  void ForgetPassed(const Execution& execution, Rank rank, bool named);
  // The rank does not come any more. The next failure.
  std::map<Execution, Failed>::iterator Passes(std::map<Execution, Failed>::iterator failure,
                                               Rank rank);
  // The execution has failed: ranks that are behind it already are yet to pass it.
  void LookAgainFrom(const Execution& execution);
  void ForgetFailures();
  size_t BytesOf(const Failed& failed) const;
  static size_t BytesOf(const PackedNumbers& passed);

  const uint32_t num_ranks_;
  const absl::Status base_cause_;
  Programs programs_;
  std::map<Execution, Failed> failed_;
  // Of programs of `failed_`: [num_ranks] all failures below it were told that the rank has passed them. So it looks at each once,
  // but for those above one that comes late.
  std::map<ProgramId, PackedNumbers> passed_;
  std::deque<absl::Status> causes_;  // Of the last generations that have ended.
  uint64_t generation_ = 0;
  uint64_t num_diverged_ = 0;  // Of the generations that have ended.
  size_t bytes_ = 0;
  std::shared_ptr<ProgramMemory> share_;  // Null: it shares with nobody.
};

}  // namespace epd
