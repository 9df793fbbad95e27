#include "daemon/control/uid_limits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace epd {
namespace {

constexpr size_t kMaxPidsNamed = 4;

// "pid 12 has 300, pid 13 has 4", those with the most.
std::string NameHolders(const UidUse& use, uint64_t UidShare::*part) {
  std::vector<std::pair<uint64_t, int32_t>> holders;
  for (const auto& [pid, share] : use.of_pid) {
    if (share.*part > 0) holders.emplace_back(share.*part, pid);
  }
  std::sort(holders.rbegin(), holders.rend());
  const size_t num_left = holders.size() - std::min(holders.size(), kMaxPidsNamed);
  holders.resize(holders.size() - num_left);
  const std::string named = absl::StrJoin(holders, ", ", [](std::string* out, const auto& holder) {
    absl::StrAppend(out, "pid ", holder.second, " has ", holder.first);
  });
  return num_left == 0 ? named : absl::StrCat(named, ", and ", num_left, " more");
}

}  // namespace

absl::Status CheckShare(uint32_t uid, const UidUse& use, const UidShare& more,
                        const UidShare& limits) {
  for (const UidLimit& limit : kUidLimits) {
    const uint64_t held = use.all.*limit.part;
    const uint64_t asked = more.*limit.part;
    const uint64_t max = limits.*limit.part;
    if (asked == 0 || (held <= max && asked <= max - held)) continue;
    const std::string holders = NameHolders(use, limit.part);
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", uid, " has ", held, " ", limit.what, " on this node",
                     holders.empty() ? "" : absl::StrCat(" (", holders, ")"), " and asks for ",
                     asked, " more; one uid may have ", max, " (", limit.setting,
                     "); end some, or have the setting raised"));
  }
  return absl::OkStatus();
}

}  // namespace epd
