#include "daemon/worker/engine/program_divergence.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/rank_holder.h"
#include "daemon/worker/engine/agreement.h"

namespace epd {
namespace {

// The oldest operation in which each rank waits; empty if a rank waits in none, or in more than one
// execution.
std::vector<const Operation*> WaitingOfRanks(const std::vector<Operation*>& undecided,
                                             const Tenant& tenant) {
  std::vector<const Operation*> waiting(tenant.start.spec.num_ranks, nullptr);
  for (const Operation* operation : undecided) {
    if (operation->phase != Phase::kGathering || operation->key.named) continue;
    for (Rank rank : operation->In(PartState::kAnnounced)) {
      const Operation*& mine = waiting[rank.value];
      if (mine != nullptr && mine->key.execution != operation->key.execution) return {};
      if (mine == nullptr || operation->first_announce < mine->first_announce) mine = operation;
    }
  }
  for (const Operation* operation : waiting) {
    if (operation == nullptr) return {};
  }
  return waiting;
}

// What makes programs differ though their source is the same: see client/python/epd/jax/_kept_call.py.
std::string NoTokensHint(const Operation& together) {
  std::vector<Rank> without;
  for (uint32_t r = 0; r < together.parts.size(); ++r) {
    if (together.parts[r].said.num_tokens == 0) without.push_back(Rank(r));
  }
  if (without.empty() || without.size() == together.parts.size()) return "";
  return absl::StrCat(
      "; ranks ", DescribeRanks(without),
      " have no tokens, so that nothing keeps their exchanges in order where several functions "
      "(nested jit, jax.checkpoint) make them; give these ranks one token whose indices are all "
      "-1");
}

// Some rank waits in `waiting` while `missing` still lacks it.
bool WaitsFor(const Operation& missing, const Operation& waiting) {
  for (size_t r = 0; r < missing.parts.size(); ++r) {
    if (missing.parts[r].state == PartState::kAbsent &&
        waiting.parts[r].state == PartState::kAnnounced) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::Status CheckDivergence(const std::vector<Operation*>& undecided, const Tenant& tenant,
                             absl::Time since) {
  const std::vector<const Operation*> waiting = WaitingOfRanks(undecided, tenant);
  if (waiting.empty()) return absl::OkStatus();
  std::map<Execution, std::pair<const Operation*, std::vector<Rank>>> executions;
  Operation together = *waiting[0];
  for (uint32_t r = 0; r < waiting.size(); ++r) {
    if (waiting[r]->first_announce > since) return absl::OkStatus();
    auto& [operation, ranks] = executions[waiting[r]->key.execution];
    operation = waiting[r];
    ranks.push_back(Rank(r));
    together.parts[r].said = waiting[r]->parts[r].said;
  }
  if (executions.size() < 2) return absl::OkStatus();
  const std::string who = absl::StrJoin(executions, ", ", [](std::string* out, const auto& one) {
    const auto& [operation, ranks] = one.second;
    absl::StrAppend(out, operation->Describe(), " on ranks ", DescribeRanks(ranks));
  });
  const absl::Status calls = CheckAgreement(together, tenant);
  return absl::InvalidArgumentError(absl::StrCat(
      "the ranks wait for each other in different programs or executions: ", who, "; ",
      calls.ok() ? "these calls agree, so the programs differ before or after them"
                 : calls.message(),
      NoTokensHint(together),
      "; run the same programs on all ranks, in one order, or give the calls names [EPD-1003]"));
}

const Operation* FindCrossed(const Operation& operation, const std::vector<Operation*>& others) {
  for (const Operation* other : others) {
    if (other == &operation || other->phase != Phase::kGathering) continue;
    if (WaitsFor(operation, *other) && WaitsFor(*other, operation)) return other;
  }
  return nullptr;
}

}  // namespace epd
