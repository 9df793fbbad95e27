#include "daemon/worker/engine/agreement.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/core/rank_holder.h"
#include "daemon/worker/engine/cause_text.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/row_dtype.h"

namespace epd {
namespace {

struct Field {
  const char* name;
  std::string (*show)(const Announcement&);
};

std::string ShowDtype(const Announcement& said) {
  if (said.dtype == 0) return "none";
  if (said.dtype < shm::kOpaqueDtype) return std::string(Name(static_cast<Dtype>(said.dtype)));
  // The tag is the caller's: of a type, or of how arrays that share an exchange divide a row.
  return absl::StrCat(shm::DtypeBytes(said.dtype), "-byte elements of the type or division ",
                      said.dtype & 0xff);
}

// Ordered by how much a difference says: what kind of call it is first.
constexpr std::array<Field, 8> kFields = {{
    {"kind", [](const Announcement& a) { return KindName(a.kind); }},
    {"spec_hash", [](const Announcement& a) { return absl::StrFormat("%016x", a.spec_hash); }},
    {"plan_id", [](const Announcement& a) { return absl::StrCat(a.plan_id); }},
    {"dtype", ShowDtype},
    {"row_bytes", [](const Announcement& a) { return absl::StrCat(a.row_bytes); }},
    {"top_k", [](const Announcement& a) { return absl::StrCat(a.top_k); }},
    {"alignment", [](const Announcement& a) { return absl::StrCat(a.alignment); }},
    {"has_weights", [](const Announcement& a) { return absl::StrCat(a.has_weights); }},
}};

// Values of one field with the ranks that say them, the most frequent first.
using Votes = std::vector<std::pair<std::string, std::vector<Rank>>>;

Votes Count(const Operation& operation, const Field& field) {
  std::map<std::string, std::vector<Rank>> ranks_of;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    ranks_of[field.show(operation.parts[r].said)].push_back(Rank(r));
  }
  Votes votes(ranks_of.begin(), ranks_of.end());
  std::stable_sort(votes.begin(), votes.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return votes;
}

std::string ShowVotes(const Votes& votes) {
  return absl::StrJoin(votes, ", ", [](std::string* out, const auto& vote) {
    absl::StrAppend(out, vote.first, " on ranks ", DescribeRanks(vote.second));
  });
}

}  // namespace

absl::Status CheckAgreement(const Operation& operation, const Tenant& tenant) {
  for (const Field& field : kFields) {
    const Votes votes = Count(operation, field);
    if (votes.size() == 1) continue;
    std::string text =
        absl::StrCat("the ranks' calls do not agree in ", field.name, ": ", ShowVotes(votes));
    const bool majority = votes[0].second.size() * 2 > operation.parts.size();
    if (majority) {
      std::vector<Rank> odd;
      for (size_t v = 1; v < votes.size(); ++v) {
        odd.insert(odd.end(), votes[v].second.begin(), votes[v].second.end());
      }
      absl::StrAppend(&text, "; the odd ones out are ", NameRanks(tenant, odd, "announce"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        text, "; call the operation alike on all ranks (", operation.Describe(), ") [EPD-1002]"));
  }
  return absl::OkStatus();
}

absl::Status CheckOverflow(const Operation& operation, const Tenant& tenant) {
  if (tenant.start.spec.drop_on_overflow) return absl::OkStatus();
  std::vector<Rank> over;
  Rank worst;
  uint64_t worst_excess = 0;
  for (uint32_t r = 0; r < operation.parts.size(); ++r) {
    const Announcement& said = operation.parts[r].said;
    if (!Scatters(said.kind) || said.demand <= said.recv_capacity) continue;
    over.push_back(Rank(r));
    if (said.demand - said.recv_capacity > worst_excess) {
      worst_excess = said.demand - said.recv_capacity;
      worst = Rank(r);
    }
  }
  if (over.empty()) return absl::OkStatus();
  const Announcement& said = operation.parts[worst.value].said;
  return absl::ResourceExhaustedError(absl::StrCat(
      NameRanks(tenant, {worst}, PhaseName(shm::Step::kAnnounce)), " would receive ", said.demand,
      " slots, its capacity is ", said.recv_capacity,
      over.size() > 1 ? absl::StrCat(" (ranks over their capacity: ", DescribeRanks(over), ")")
                      : "",
      "; raise the receive capacity, balance the routing, or set drop_on_overflow [EPD-1101]"));
}

}  // namespace epd
