#include "proto/machine/cgroup_limits.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace epd {
namespace {

// cgroup v1 says so where there is none: the largest number of whole pages.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

// One hierarchy that is mounted here.
struct Mount {
  bool unified = false;  // cgroup v2.
  std::string root;      // The group that the mount's folder shows.
  std::string folder;
};

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool Lists(const std::string& list, const std::string& word) {
  const std::vector<std::string> words = Split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// mountinfo writes blanks and the like as \040.
std::string Unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = std::string_view(text).substr(i + 1, 3);
    const bool escaped = text[i] == '\\' && digits.size() == 3 &&
                         digits.find_first_not_of("01234567") == std::string_view::npos;
    plain +=
        escaped
            ? static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0'))
            : text[i];
    if (escaped) i += 3;
  }
  return plain;
}

// "36 35 0:30 ROOT FOLDER options optional... - TYPE source superoptions"
std::vector<Mount> MountsOf(const std::string& controller, const std::string& mountinfo) {
  std::vector<Mount> mounts;
  for (const std::string& line : Split(mountinfo, '\n')) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> before = Split(line.substr(0, dash), ' ');
    const std::vector<std::string> after = Split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.empty()) continue;
    const bool unified = after[0] == "cgroup2";
    if (!unified && !(after[0] == "cgroup" && after.size() > 2 && Lists(after[2], controller)))
      continue;
    mounts.push_back({unified, Unescaped(before[3]), Unescaped(before[4])});
  }
  return mounts;
}

// "4:memory:/a/b"; of cgroup v2 "0::/a/b". A colon may stand in the path.
std::optional<std::string> GroupOf(const std::string& controller, bool unified,
                                   const std::string& cgroup) {
  for (const std::string& line : Split(cgroup, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    if (unified ? list.empty() : Lists(list, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Below the mount's folder: "" is the mount's root, "/a/b" a group in it. Also the root where the group is not below it, as in a
// container that has the host's names.
std::string PathBelow(const Mount& mount, const std::string& group) {
  const std::string root = mount.root == "/" ? "" : mount.root;
  const bool below = group.compare(0, root.size(), root) == 0 &&
                     (group.size() == root.size() || group[root.size()] == '/') &&
                     group.find("/..") == std::string::npos;
  const std::string path = below ? group.substr(root.size()) : "";
  return path == "/" ? "" : path;
}

// The group's own folder first, the mount's last.
std::vector<std::string> FoldersOf(const Mount& mount, const std::string& group) {
  std::vector<std::string> folders;
  std::string path = PathBelow(mount, group);
  for (; !path.empty(); path.resize(path.rfind('/'))) folders.push_back(mount.folder + path);
  folders.push_back(mount.folder);
  return folders;
}

std::optional<uint64_t> Number(const std::optional<std::string>& text) {
  uint64_t number = 0;
  std::istringstream stream(text.value_or(""));
  if (!(stream >> number)) return std::nullopt;  // "max".
  return number;
}

// Of a line "NAME NUMBER".
std::optional<uint64_t> NumberAfter(const std::string& name,
                                    const std::optional<std::string>& text) {
  for (const std::string& line : Split(text.value_or(""), '\n')) {
    if (line.compare(0, name.size() + 1, name + " ") == 0) return Number(line.substr(name.size()));
  }
  return std::nullopt;
}

void AddLimit(const ReadFile& read, const std::string& file, uint64_t used,
              std::vector<CgroupLimit>& limits) {
  const std::optional<uint64_t> limit = Number(read(file));
  if (limit.has_value() && *limit < kNoLimit) limits.push_back({*limit, used, file});
}

uint64_t UsedMemory(const ReadFile& read, const std::string& folder, bool unified) {
  const uint64_t all =
      Number(read(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"))).value_or(0);
  const std::string total = unified ? "" : "total_";  // Of v1: with the groups below it.
  const std::optional<std::string> stat = read(folder + "/memory.stat");
  const uint64_t files = NumberAfter(total + "inactive_file", stat).value_or(0) +
                         NumberAfter(total + "active_file", stat).value_or(0) +
                         NumberAfter("slab_reclaimable", stat).value_or(0);  // Of v2.
  return all - std::min(all, files);
}

void AddMemoryLimits(const ReadFile& read, const Mount& mount, const std::string& group,
                     std::vector<CgroupLimit>& limits) {
  const std::vector<std::string> folders = FoldersOf(mount, group);
  for (const std::string& folder : folders) {
    // Without a hierarchy, as old kernels had it, a group's limit is not for those below it.
    const bool counts = folder == folders.front() || mount.unified ||
                        Number(read(folder + "/memory.use_hierarchy")).value_or(1) != 0;
    if (!counts) continue;
    const uint64_t used = UsedMemory(read, folder, mount.unified);
    if (mount.unified) {
      AddLimit(read, folder + "/memory.max", used, limits);
      AddLimit(read, folder + "/memory.high", used, limits);
      continue;
    }
    AddLimit(read, folder + "/memory.limit_in_bytes", used, limits);
  }
  if (mount.unified) return;
  const std::string stat = folders.front() + "/memory.stat";
  const std::optional<uint64_t> of_all = NumberAfter("hierarchical_memory_limit", read(stat));
  const auto lowest = Lowest(limits);
  if (of_all.has_value() && *of_all < kNoLimit && (!lowest.has_value() || *of_all < lowest->limit))
    limits.push_back({*of_all, UsedMemory(read, folders.front(), false), stat});
}

void AddPidsLimits(const ReadFile& read, const Mount& mount, const std::string& group,
                   std::vector<CgroupLimit>& limits) {
  for (const std::string& folder : FoldersOf(mount, group)) {
    AddLimit(read, folder + "/pids.max", Number(read(folder + "/pids.current")).value_or(0),
             limits);
  }
}

template <typename Add>
std::vector<CgroupLimit> LimitsOf(const std::string& controller, const ReadFile& read,
                                  const Add& add) {
  const std::string cgroup = read("/proc/self/cgroup").value_or("");
  std::vector<CgroupLimit> limits;
  for (const Mount& mount : MountsOf(controller, read("/proc/self/mountinfo").value_or(""))) {
    const std::optional<std::string> group = GroupOf(controller, mount.unified, cgroup);
    if (group.has_value()) add(read, mount, *group, limits);
  }
  return limits;
}

}  // namespace

std::optional<std::string> ReadMachineFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<CgroupLimit> MemoryLimits(const ReadFile& read) {
  return LimitsOf("memory", read, &AddMemoryLimits);
}

std::vector<CgroupLimit> PidsLimits(const ReadFile& read) {
  return LimitsOf("pids", read, &AddPidsLimits);
}

std::optional<CgroupLimit> MachineMemory(const ReadFile& read) {
  constexpr uint64_t kKib = 1024;
  const std::string file = "/proc/meminfo";
  const std::optional<std::string> text = read(file);
  const std::optional<uint64_t> all = NumberAfter("MemTotal:", text);
  const std::optional<uint64_t> available = NumberAfter("MemAvailable:", text);
  if (!all.has_value() || !available.has_value()) return std::nullopt;
  const uint64_t room = std::min(*all, *available + NumberAfter("SwapFree:", text).value_or(0));
  return CgroupLimit{*all * kKib, (*all - room) * kKib, file};
}

std::optional<CgroupLimit> Lowest(const std::vector<CgroupLimit>& limits) {
  const auto found = std::min_element(
      limits.begin(), limits.end(),
      [](const CgroupLimit& a, const CgroupLimit& b) { return a.limit < b.limit; });
  return found == limits.end() ? std::nullopt : std::optional<CgroupLimit>(*found);
}

std::optional<CgroupLimit> LeastRoom(const std::vector<CgroupLimit>& limits) {
  const auto found = std::min_element(
      limits.begin(), limits.end(),
      [](const CgroupLimit& a, const CgroupLimit& b) { return a.room() < b.room(); });
  return found == limits.end() ? std::nullopt : std::optional<CgroupLimit>(*found);
}

}  // namespace epd
