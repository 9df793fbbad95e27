#include "daemon/node/settings/peers.h"

#include <cstdint>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "daemon/tls/address.h"

namespace epd {
namespace {

constexpr uint32_t kMaxNodes = 1 << 16;  // In one pair of brackets; as many as Slurm knows.

// Splits at commas that stand outside of brackets.
std::vector<std::string> SplitOutside(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// "01-03" -> 01, 02, 03, as wide as the first is written.
bool ExpandRange(const std::string& range, std::vector<std::string>& out) {
  const std::vector<std::string> ends = absl::StrSplit(range, '-');
  uint32_t first = 0;
  uint32_t last = 0;
  if (ends.empty() || ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
      !absl::SimpleAtoi(ends.back(), &last) || last < first ||
      last - first >= kMaxNodes - out.size())
    return false;
  const int width = static_cast<int>(ends.front().size());
  // 64 bits: `last` may be the largest number of 32.
  for (uint64_t i = first; i <= last; ++i) out.push_back(absl::StrFormat("%0*d", width, i));
  return true;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(const std::string& text) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("got the node list '", text, "', expected such as node[01-03,07],gpu5"));
  std::vector<std::string> nodes;
  for (const std::string& part : SplitOutside(text)) {
    const size_t open = part.find('[');
    if (part.empty()) return bad;
    if (open == std::string::npos) {
      nodes.push_back(part);
      continue;
    }
    const size_t close = part.find(']');
    if (close == std::string::npos || close < open || part.find('[', open + 1) != std::string::npos)
      return bad;
    std::vector<std::string> numbers;
    const std::string ranges = part.substr(open + 1, close - open - 1);
    for (const absl::string_view range : absl::StrSplit(ranges, ',')) {
      if (!ExpandRange(std::string(range), numbers)) return bad;
    }
    for (const std::string& number : numbers)
      nodes.push_back(absl::StrCat(part.substr(0, open), number, part.substr(close + 1)));
  }
  return nodes;
}

absl::StatusOr<std::string> FirstPeer(const std::string& peers, const std::string& slurm_nodes) {
  const std::vector<std::string> list = absl::StrSplit(peers, ',');
  for (const std::string& peer : list) {
    if (!IsHostPort(peer, 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("peers: got '", peer,
                       "', expected host:port,host:port,... or slurm:port, "
                       "ports from 1 to 65535"));
    }
  }
  if (!absl::StartsWith(list.front(), "slurm:")) return list.front();
  if (slurm_nodes.empty()) {
    return absl::FailedPreconditionError(
        "peers: got 'slurm', but SLURM_JOB_NODELIST is not set; start epd with srun in a job, or "
        "list the peers");
  }
  const absl::StatusOr<std::vector<std::string>> nodes = ExpandNodeList(slurm_nodes);
  if (!nodes.ok()) return nodes.status();
  return absl::StrCat(nodes->front(), list.front().substr(5));
}

bool IsThisNode(const std::string& address, const std::vector<std::string>& own_names) {
  const std::string host = address.substr(0, address.rfind(':'));
  return absl::c_any_of(own_names, [&](const std::string& own) {
    return !own.empty() && (host == own || absl::StartsWith(host, own + "."));
  });
}

}  // namespace epd
