#include "daemon/worker/engine/cause_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/rank_holder.h"
#include "daemon/core/resumable.h"
#include "proto/epd/v1/limits.h"
#include "proto/epd/v1/operation_kind.h"
#include "proto/epd/v1/text.h"

namespace epd {
namespace {

// A message has kMessageBytes; further ranks are named by number only.
constexpr size_t kMaxRanksInFull = 16;

absl::Status WithPrefix(const absl::Status& status, absl::string_view place, uint32_t rank,
                        shm::Step step) {
  return absl::Status(status.code(), absl::StrCat("[epd:", absl::StatusCodeToString(status.code()),
                                                  "] ", place, " rank=", rank, " phase=",
                                                  PhaseName(step), ": ", status.message()));
}

}  // namespace

std::string NameRanks(const Tenant& tenant, const std::vector<Rank>& ranks,
                      const std::string& phase) {
  const size_t num_named = std::min(ranks.size(), kMaxRanksInFull);
  std::string text = absl::StrJoin(
      ranks.begin(), ranks.begin() + num_named, "; ", [&](std::string* out, Rank rank) {
        absl::StrAppend(out, Describe(tenant.MemberOf(rank.value), phase));
      });
  if (num_named < ranks.size()) {
    absl::StrAppend(&text, "; and ranks ", DescribeRanks({ranks.begin() + num_named, ranks.end()}),
                    " phase=", phase);
  }
  return text;
}

absl::Status WorkerLost(const Tenant& tenant, const std::vector<Rank>& ranks,
                        absl::string_view why) {
  const std::vector<RankHolder>& members = tenant.start.members;
  const std::string who = ranks.empty() || members.empty()
                              ? "a worker of the group"
                              : DescribeWorker(members[ranks[0].value].server(), members);
  return WorkerGone(who, why);
}

absl::Status WorkerStops(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("this node's worker is gone: ", why,
                                             "; connect again once epd runs [EPD-1304]"));
}

absl::Status GroupDrains(const Tenant& tenant) {
  absl::Status refusal = absl::FailedPreconditionError(
      "the group is draining and takes no new operations; join another group, or wait until it is "
      "open again [EPD-1401]");
  return tenant.drains_in_order ? Resumable(std::move(refusal)) : refusal;
}

absl::Status ForClient(const absl::Status& status, const Tenant& tenant, uint32_t rank,
                       shm::Step step) {
  return WithPrefix(
      status, absl::StrCat("group=", Title(tenant.start.spec), " epoch=", tenant.start.epoch.value),
      rank, step);
}

absl::Status ForStranger(const absl::Status& status, const shm::SlotRequest& request) {
  return WithPrefix(status, absl::StrCat("group_id=", request.group_id, " epoch=", request.epoch),
                    request.rank, request.step);
}

std::string SafeText(std::string_view written) { return text::Clean(written, limits::kErrorBytes); }

std::string ScopeText(std::string_view written) {
  const std::string_view end =
      written.substr(written.size() - std::min(written.size(), kScopeBytes));
  return end.empty() ? "" : absl::StrCat(" scope=", text::Clean(end, kScopeBytes));
}

std::string NameOf(const shm::SlotRequest& request) {
  if (request.has_name != 0 && request.error_code == 0) {
    return absl::StrCat("name=", SafeText(text::Read(request.announce.name)));
  }
  const std::string program =
      absl::StrCat(request.has_name != 0 ? "name_digest=" : "program=",
                   absl::BytesToHexString(absl::string_view(
                       reinterpret_cast<const char*>(request.program), kDigestBytesShown)));
  if (request.error_code != 0) return program;
  return absl::StrCat(program, ScopeText(text::Read(request.announce.name)));
}

}  // namespace epd
