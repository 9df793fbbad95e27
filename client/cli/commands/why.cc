#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands/command.h"
#include "client/cli/human.h"
#include "client/cli/printers/tables.h"

namespace epd::cli {
namespace {

using epd::v1::ListGroupsResponse;

// How long others have waited for a rank of it; zero: nobody waits.
absl::Duration LongestWait(const epd::v1::Group& group) {
  absl::Duration longest = absl::ZeroDuration();
  for (const epd::v1::Rank& rank : group.ranks()) {
    if (absl::StartsWith(rank.phase(), "absent_in_"))
      longest = std::max(longest, ToDuration(rank.phase_age()));
  }
  return longest;
}

std::string NamesOf(const ListGroupsResponse& groups) {
  return absl::StrJoin(groups.groups(), ", ", [](std::string* out, const epd::v1::Group& group) {
    absl::StrAppend(out, group.spec().name());
  });
}

}  // namespace

std::string GroupToExplain(const ListGroupsResponse& groups) {
  const epd::v1::Group* chosen = nullptr;
  for (const epd::v1::Group& group : groups.groups()) {
    const bool is_late = LongestWait(group) > absl::ZeroDuration();
    if (is_late && (chosen == nullptr || LongestWait(group) > LongestWait(*chosen)))
      chosen = &group;
  }
  if (chosen == nullptr) {
    const auto unready = absl::c_find_if(groups.groups(), [](const epd::v1::Group& group) {
      return group.state() != epd::v1::GROUP_STATE_READY;
    });
    if (unready != groups.groups().end()) chosen = &*unready;
  }
  if (chosen == nullptr && groups.groups_size() == 1) chosen = &groups.groups(0);
  return chosen == nullptr ? "" : chosen->spec().name();
}

Report RunWhy(const CommandContext& context) {
  using epd::v1::Node;
  const Options& options = context.options;
  epd::v1::ExplainGroupRequest request;
  request.set_name(options.group);
  if (options.tenant.has_value()) request.set_tenant(*options.tenant);
  if (options.group.empty()) {
    Report listed =
        CallNode(context, "ListGroups", &Node::Stub::ListGroups, epd::v1::ListGroupsRequest());
    if (listed.message == nullptr) return listed;
    const auto& groups = static_cast<const ListGroupsResponse&>(*listed.message);
    request.set_name(GroupToExplain(groups));
    if (request.name().empty())
      return {ExitCode::kUsage, nullptr, "",
              groups.groups().empty()
                  ? "there is no group on this node"
                  : absl::StrCat("all groups are READY and no rank is waited for; name one: ",
                                 NamesOf(groups))};
  }
  Report report = CallNode(context, "ExplainGroup", &Node::Stub::ExplainGroup, request);
  if (report.message == nullptr) return report;
  report.table =
      WhyText(static_cast<const epd::v1::ExplainGroupResponse&>(*report.message), options.all_past);
  return report;
}

}  // namespace epd::cli
