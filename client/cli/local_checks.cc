#include "client/cli/local_checks.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/human.h"

namespace epd::cli {
namespace {

using epd::v1::Finding;
using Findings = google::protobuf::RepeatedPtrField<Finding>;

// A session has a socket, a slots segment, an eventfd and an arena per rank of each set.
constexpr rlim_t kMinOpenFiles = 1024;

struct Advice {
  std::string consequence;
  std::string fix;
};

// A good one says neither what follows nor what to do.
void Add(Findings& findings, const std::string& what, bool ok, const std::string& found,
         const Advice& advice) {
  Finding& finding = *findings.Add();
  finding.set_what(what);
  finding.set_ok(ok);
  finding.set_found(found);
  if (!ok) finding.set_consequence(advice.consequence);
  if (!ok) finding.set_fix(advice.fix);
}

Advice Advise(ProbeResult result) {
  switch (result) {
    case ProbeResult::kRefused:
      return {"clients that look here fail to connect",
              "start epd again (it replaces a socket that nobody listens on), or remove the file"};
    case ProbeResult::kDenied:
      return {"this user cannot use that daemon", "run as the user who started epd, or as root"};
    case ProbeResult::kStranger:
      return {"neither clients nor epctl say a word to it",
              "remove the socket, or trust that user"};
    case ProbeResult::kTooLong:
      return {"no program can connect to it", "choose a shorter path with --socket or EPD_SOCKET"};
    case ProbeResult::kNever:
      return {"clients that look here fail to connect, whatever epd does",
              "start the container again, or name epd's socket"};
    default:
      return {"", ""};
  }
}

// Returns whether a daemon answers.
bool CheckSockets(const std::vector<SocketCandidate>& candidates, Findings& findings) {
  bool any = false;
  for (const SocketCandidate& candidate : candidates) {
    const std::string path = GrpcPath(candidate.attach_path);
    const Probe probe = ProbeSocket(path);
    const bool listens = probe.result == ProbeResult::kListening;
    any = any || listens;
    // A place that is merely empty is fine as long as another one is not.
    Add(findings, absl::StrCat("socket: ", candidate.origin),
        listens || probe.result == ProbeResult::kMissing, absl::StrCat(path, ": ", probe.text),
        Advise(probe.result));
  }
  if (!any) {
    Add(findings, "daemon", false, "no epd answers at any of these places",
        {"clients start a private daemon, or fail if EPD_AUTOSTART=0",
         "start one with 'epd' or 'systemctl start epd'"});
  }
  return any;
}

// What epd and the clients refuse; a private one is not needed where a daemon answers.
void CheckFolder(const SocketCandidate& candidate, bool answers, Findings& findings) {
  const std::string folder = std::filesystem::path(candidate.attach_path).parent_path();
  if (!candidate.problem.empty()) {
    return Add(findings, absl::StrCat("folder: ", folder), answers, candidate.problem,
               {"clients of this user find and start no private daemon",
                "what the text says, or start one elsewhere and set EPD_SOCKET to its socket"});
  }
  struct stat entry {};
  if (lstat(folder.c_str(), &entry) != 0) return;  // Made when it is needed.
  Add(findings, absl::StrCat("folder: ", folder), S_ISDIR(entry.st_mode),
      absl::StrFormat("owner uid %d, mode %04o%s", entry.st_uid, entry.st_mode & 07777,
                      S_ISDIR(entry.st_mode) ? "" : ", not a folder"),
      {"no socket can be there", "remove it, or name another socket"});
}

void CheckPrograms(Findings& findings) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* name : {"epd", "epd-worker"}) {
    const std::string path = self.parent_path() / name;
    const bool found = access(path.c_str(), X_OK) == 0;
    Add(findings, absl::StrCat("program: ", name), found,
        found ? path : absl::StrCat("not beside epctl (", self.parent_path().string(), ")"),
        {"a private daemon starts only if EPD_PROGRAM leads to one",
         "run deploy/setup, or set EPD_PROGRAM"});
  }
}

void CheckOpenFiles(Findings& findings) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Add(findings, "limit: open files", limit.rlim_cur >= kMinOpenFiles, absl::StrCat(limit.rlim_cur),
      {"a daemon with many groups or sessions runs out of descriptors",
       absl::StrCat("ulimit -n ", kMinOpenFiles, " or LimitNOFILE= in the unit")});
}

// Staging is shared memory, so these pages count against the memory that is free now.
void CheckMemory(Findings& findings) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() < 2 || words[0] != "MemAvailable:" || !absl::SimpleAtoi(words[1], &kib))
      continue;
    Add(findings, "memory", true,
        absl::StrCat(HumanBytes(kib * 1024), " available for staging and programs"), {});
  }
}

}  // namespace

void CheckLocally(const Options& options, const SearchContext& search, Findings& findings) {
  if (options.address.empty()) {
    const std::vector<SocketCandidate> candidates = FindCandidates(options.socket, search);
    const bool answers = CheckSockets(candidates, findings);
    for (const SocketCandidate& candidate : candidates) CheckFolder(candidate, answers, findings);
  }
  CheckPrograms(findings);
  CheckOpenFiles(findings);
  CheckMemory(findings);
}

}  // namespace epd::cli
