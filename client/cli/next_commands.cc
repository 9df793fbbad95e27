#include "client/cli/next_commands.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/table.h"

namespace epd::cli {
namespace {

using Hints = std::vector<std::pair<std::string, std::string>>;

Hints ForDaemon(const epd::v1::GetStatusResponse& status) {
  Hints hints;
  if (status.health() != epd::v1::HEALTH_OK)
    hints.emplace_back("epctl doctor", "what is wrong on this node, each with what to do");
  if (status.num_groups() > 0) {
    hints.emplace_back("epctl groups", "the groups and the state of each");
    hints.emplace_back("epctl why", "who waits for whom, and since when; NAME: in that group");
    hints.emplace_back("epctl top", "what each group does now");
  } else {
    hints.emplace_back("epctl sessions", "who is attached");
    hints.emplace_back("epctl plan NAME ...", "the memory that a group would need");
  }
  if (!status.coordinator().empty())
    hints.emplace_back("epctl status --all-nodes", "all nodes of the cluster");
  return hints;
}

}  // namespace

std::string NextCommands(const Report& status) {
  Hints hints;
  if (status.message != nullptr) {
    hints = ForDaemon(static_cast<const epd::v1::GetStatusResponse&>(*status.message));
  } else {
    hints = {{"epctl doctor", "what this machine lacks; works without a daemon"},
             {"epd --help", "how to start one"}};
  }
  hints.emplace_back("epctl explain EPD-nnnn", "what an error means, and what to do");
  hints.emplace_back("epctl --help", "all commands");
  size_t width = 0;
  for (const auto& [command, what] : hints) width = std::max(width, command.size());
  std::string text = "\nNext:\n";
  for (const auto& [command, what] : hints) {
    absl::StrAppend(&text, "  ", command, std::string(width - command.size() + 2, ' '), what, "\n");
  }
  return text;
}

}  // namespace epd::cli
