#include "daemon/node/attach/refused_users.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {

void RefusedUsers::Refuse(uint32_t uid, absl::Time until, std::string why) {
  refused_.insert_or_assign(uid, Refusal{until, std::move(why)});
}

absl::Status RefusedUsers::Check(uint32_t uid, absl::Time now) {
  std::erase_if(refused_, [now](const auto& entry) { return now >= entry.second.until; });
  const auto found = refused_.find(uid);
  if (found == refused_.end()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(found->second.why, "; it may attach again in ",
                   absl::FormatDuration(absl::Ceil(found->second.until - now, absl::Seconds(1)))));
}

}  // namespace epd
