// Goal: programs that learn late of the generations that have ended say the same, call by call, as ones that are all told at
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/worker/engine/execution_history.h"
#include "tests/seed/seed.h"

namespace epd {
namespace {

// The reference: every program is told of each end of a generation when it happens. Bounds are those of counts alone.
class EagerHistory {
 public:
  EagerHistory(uint32_t num_ranks, const std::vector<ExecutionBase>& bases, absl::Status base_cause)
      : num_ranks_(num_ranks), base_cause_(std::move(base_cause)) {
    for (const ExecutionBase& entry : bases) {
      Program& program = programs_[entry.program];
      program.base.resize(num_ranks_);
      program.base[entry.rank.value] = entry.base;
    }
  }

  absl::StatusOr<Execution> Enter(Rank rank, const ProgramId& id, bool named, uint64_t raw) {
    Program& program = programs_[id];
    const uint64_t base = program.base.empty() ? 0 : program.base[rank.value];
    if (raw < base) return base_cause_;
    program.named = named;
    program.begun.resize(num_ranks_);
    uint64_t& begun = program.begun[rank.value];
    begun = std::max(begun, raw - base + 1);
    const uint64_t number =
        raw - base + (program.skipped.empty() ? 0 : program.skipped[rank.value].At(raw - base));
    absl::Status cause;
    const auto failed = program.failed.find(number);
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

  bool Fail(const Execution& execution, const absl::Status& cause, const std::set<Rank>& may_come) {
    if (may_come.empty()) return true;
    const bool added = programs_[execution.program]
                           .failed.try_emplace(execution.number, Failed{cause, may_come})
                           .second;
    if (added) ++num_failed_;
    return num_failed_ <= kMaxFailedExecutions;
  }

  void EndGeneration(const absl::Status& cause) {
    ++generation_;
    const bool forget = num_failed_ > kMaxFailedExecutions;
    if (forget) num_failed_ = 0;
    for (auto& [unused, program] : programs_) {
      if (forget) program.failed.clear();
      const uint64_t last = program.cut_offs.empty() ? 0 : program.cut_offs.back().end;
      if (program.num_begun <= last) continue;
      program.cut_offs.push_back(CutOff{.end = program.num_begun, .cause = cause});
      if (program.cut_offs.size() > kMaxCutOffs) program.cut_offs.erase(program.cut_offs.begin());
    }
  }

  void EndDivergedGeneration(const absl::Status& cause) {
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

  bool Runs(const Execution& execution) const {
    const auto found = programs_.find(execution.program);
    if (found == programs_.end() || found->second.failed.contains(execution.number)) return false;
    const std::vector<CutOff>& cut_offs = found->second.cut_offs;
    return cut_offs.empty() || execution.number >= cut_offs.back().end;
  }

  bool Knows(const ProgramId& program) const { return programs_.contains(program); }
  uint64_t generation() const { return generation_; }
  size_t num_failed_remembered() const { return num_failed_; }

 private:
  struct Failed {
    absl::Status cause;
    std::set<Rank> may_come;
  };
  struct CutOff {
    uint64_t end = 0;
    absl::Status cause;
  };
  struct Skipped {
    uint64_t from = 0;
    uint64_t now = 0;
    uint64_t before = 0;

    uint64_t At(uint64_t raw) const { return raw >= from ? now : before; }
  };
  struct Program {
    std::vector<uint64_t> base;
    std::vector<uint64_t> begun;
    std::vector<Skipped> skipped;
    bool named = false;
    uint64_t num_begun = 0;
    std::vector<CutOff> cut_offs;
    std::map<uint64_t, Failed> failed;
  };

  void ForgetPassed(Program& program, Rank rank, uint64_t number, bool named) {
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

  const uint32_t num_ranks_;
  const absl::Status base_cause_;
  std::map<ProgramId, Program> programs_;
  size_t num_failed_ = 0;
  uint64_t generation_ = 0;
};

// One sequence of calls, made to both.
class Sequence {
 public:
  explicit Sequence(uint64_t seed)
      : random_(seed),
        num_ranks_(1 + Roll(4)),
        num_programs_(1 + Roll(6)),
        bases_(MakeBases()),
        eager_(num_ranks_, bases_, kReformed),
        lazy_(num_ranks_, bases_, kReformed) {}

  void Run(int num_calls) {
    for (int i = 0; i < num_calls && !::testing::Test::HasFailure(); ++i) {
      Step();
      ASSERT_EQ(lazy_.generation(), eager_.generation());
      ASSERT_EQ(lazy_.num_failed_remembered(), eager_.num_failed_remembered());
    }
  }

 private:
  static inline const absl::Status kReformed = absl::AbortedError("re-formed");

  uint64_t Roll(uint64_t n) { return random_() % n; }
  ProgramId AnyProgram() { return {static_cast<uint8_t>(1 + Roll(num_programs_))}; }
  Rank AnyRank() { return Rank(static_cast<uint32_t>(Roll(num_ranks_))); }
  std::vector<ExecutionBase> MakeBases() {
    std::vector<ExecutionBase> bases;
    for (uint64_t i = Roll(4); i > 0; --i)
      bases.push_back({.rank = AnyRank(), .program = AnyProgram(), .base = Roll(5)});
    return bases;
  }

  void Step() {
    const uint64_t roll = Roll(100);
    if (roll < 70) return Enter();
    if (roll < 80) return Fail();
    if (roll < 90) return Look();
    // As many ends as causes are kept, several of them without a call in between.
    for (uint64_t i = 1 + Roll(4); i > 0 && lazy_.generation() < kMaxCauses; --i) End();
    if (Roll(50) == 0) FailMany();
  }

  void Enter() {
    const ProgramId program = AnyProgram();
    const Rank rank = AnyRank();
    // Most programs are named or are not; some ranks do not agree about it.
    const bool named = Roll(20) == 0 ? Roll(2) == 0 : program[0] % 3 == 0;
    uint64_t& next = next_[{rank, program}];
    const uint64_t raw = Roll(3) == 0 ? Roll(next + 3) : next++;
    const absl::StatusOr<Execution> eager = eager_.Enter(rank, program, named, raw);
    const absl::StatusOr<Execution> lazy = lazy_.Enter(rank, program, named, raw);
    ASSERT_EQ(lazy.status(), eager.status());
    if (eager.ok()) {
      ASSERT_EQ(*lazy, *eager);
    }
  }

  void Fail() {
    const Execution execution{AnyProgram(), Roll(30)};
    std::set<Rank> may_come;
    for (uint32_t rank = 0; rank < num_ranks_; ++rank)
      if (Roll(2) == 0) may_come.insert(Rank(rank));
    const absl::Status cause = NewCause("failed");
    std::vector<bool> may(num_ranks_);
    for (const Rank rank : may_come) may[rank.value] = true;
    ASSERT_EQ(lazy_.Fail(execution, cause, may), eager_.Fail(execution, cause, may_come));
  }

  // More than may be remembered, so that the next end forgets them.
  void FailMany() {
    const ProgramId program = AnyProgram();
    const absl::Status cause = NewCause("failed");
    std::vector<bool> first(num_ranks_);
    first[0] = true;
    for (uint64_t n = 0; n <= kMaxFailedExecutions; ++n) {
      const Execution execution{program, 1'000'000 + n};
      ASSERT_EQ(lazy_.Fail(execution, cause, first), eager_.Fail(execution, cause, {Rank(0)}));
    }
  }

  void Look() {
    const Execution execution{AnyProgram(), Roll(40)};
    ASSERT_EQ(lazy_.Runs(execution), eager_.Runs(execution));
    ASSERT_EQ(lazy_.Knows(execution.program), eager_.Knows(execution.program));
  }

  void End() {
    const absl::Status cause = NewCause("ended");
    if (Roll(3) == 0) {
      eager_.EndDivergedGeneration(cause);
      lazy_.EndDivergedGeneration(cause);
    } else {
      eager_.EndGeneration(cause);
      lazy_.EndGeneration(cause);
    }
  }

  absl::Status NewCause(const char* what) {
    return absl::AbortedError(absl::StrCat(what, " ", ++num_causes_));
  }

  std::mt19937_64 random_;
  const uint64_t num_ranks_;
  const uint64_t num_programs_;
  const std::vector<ExecutionBase> bases_;
  EagerHistory eager_;
  ExecutionHistory lazy_;
  std::map<std::pair<Rank, ProgramId>, uint64_t> next_;
  int num_causes_ = 0;
};

TEST(ExecutionHistoryModelTest, WhoLearnsLateOfAnEndSaysWhatWhoIsToldAtOnceSays) {
  const uint64_t seed = testing::TestSeed();
  for (uint64_t i = 0; i < 150 && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("sequence ", i));
    Sequence(seed + i).Run(1000);
  }
}

}  // namespace
}  // namespace epd
