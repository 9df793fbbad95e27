#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/c/unique_fd.h"
#include "client/cli/commands/command.h"
#include "client/cli/json.h"
#include "client/cli/local_checks.h"
#include "client/cli/machine_files.h"
#include "client/cli/printers/tables.h"
#include "client/cli/process_stacks.h"
#include "client/cli/redact.h"
#include "client/cli/support_archive.pb.h"
#include "client/cli/version.h"

namespace epd::cli {
namespace {

using epd::v1::Node;

constexpr char kFirstQuestion[] = "GetStatus";
// A process that does not run cannot answer.
constexpr absl::Duration kStacksPatience = absl::Seconds(2);
// A node that does not answer is given up by the daemon that asks it, within 3.5 s.
constexpr absl::Duration kNodesPatience = absl::Seconds(5);

// Asks one thing after the other. Once the daemon has not answered in time, it is not asked again: each question would wait as long.
class Questions {
 public:
  Questions(const CommandContext& context, SupportArchive& archive)
      : context_(context), archive_(archive) {}

  // Null: no answer, and why is noted.
  template <typename Request, typename Response>
  std::unique_ptr<Response> Ask(const std::string& name,
                                grpc::Status (Node::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                                const Request& request,
                                absl::Duration patience = absl::ZeroDuration()) {
    SupportArchive::Part& part = *archive_.add_parts();
    part.set_what(name);
    if (context_.connection == nullptr) {
      part.set_problem(context_.connect_failure.error);
      return nullptr;
    }
    if (given_up_) {
      part.set_problem("not asked: the daemon did not answer before");
      return nullptr;
    }
    Report report =
        CallNodeFor(context_, name, method, request, std::max(context_.options.timeout, patience));
    given_up_ = report.code == ExitCode::kDeadline || report.code == ExitCode::kCannotConnect;
    part.set_ok(report.message != nullptr);
    part.set_problem(report.error);
    if (report.message == nullptr) return nullptr;
    archive_.set_connected(true);
    return std::unique_ptr<Response>(static_cast<Response*>(report.message.release()));
  }

  // The same into a field.
  template <typename Request, typename Response>
  void AskInto(const std::string& name,
               grpc::Status (Node::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
               Response* (SupportArchive::*field)(),
               absl::Duration patience = absl::ZeroDuration()) {
    if (const auto answer = Ask(name, method, Request(), patience)) *(archive_.*field)() = *answer;
  }

 private:
  const CommandContext& context_;
  SupportArchive& archive_;
  bool given_up_ = false;
};

// What came of one node.
void AddNode(const epd::v1::ExamineNodesResponse::Entry& entry, SupportArchive& archive) {
  const epd::v1::NodeExamination& found = entry.found();
  SupportArchive::Node& node = (*archive.mutable_by_node())[entry.node()];
  SupportArchive::Part& part = *archive.add_parts();
  part.set_what(absl::StrCat("node ", entry.node()));
  part.set_ok(entry.has_found() && found.left_out().empty());
  if (!entry.has_found()) {
    node.set_problem(entry.problem().message());
    part.set_problem(node.problem());
    return;
  }
  *node.mutable_status() = found.status();
  *node.mutable_figures() = found.figures();
  *node.mutable_sessions() = found.sessions();
  *node.mutable_memory() = found.memory();
  *node.mutable_config() = found.config();
  node.set_log(found.log());
  *node.mutable_left_out() = found.left_out();
  *node.mutable_files() = found.files();
  *node.mutable_findings() = found.findings();
  part.set_problem(absl::StrJoin(found.left_out(), "; "));
  AddWrittenStacks(found, node);
}

void AskDaemon(const CommandContext& context, SupportArchive& archive) {
  using A = SupportArchive;
  using S = Node::Stub;
  Questions questions(context, archive);
  questions.AskInto(kFirstQuestion, &S::GetStatus, &A::mutable_status);
  epd::v1::ExamineNodesRequest examine;
  if (context.options.all_nodes) {
    // Written while the others are asked, read at the end.
    examine.set_write_stacks(true);
    questions.Ask("stacks of all nodes", &S::ExamineNodes, examine, kNodesPatience);
  }
  questions.AskInto("ListNodes", &S::ListNodes, &A::mutable_nodes);
  questions.AskInto("GetFigures", &S::GetFigures, &A::mutable_figures);
  questions.AskInto("ListSessions", &S::ListSessions, &A::mutable_sessions);
  questions.AskInto("GetMemory", &S::GetMemory, &A::mutable_memory);
  questions.AskInto("GetConfig", &S::GetConfig, &A::mutable_config);
  std::set<std::string> groups;
  for (const epd::v1::Group& group : archive.figures().groups()) groups.insert(group.spec().name());
  for (const std::string& group : groups) {
    epd::v1::ExplainGroupRequest request;
    request.set_name(group);
    const auto why = questions.Ask(absl::StrCat("ExplainGroup ", group), &S::ExplainGroup, request);
    if (why != nullptr) *archive.add_why() = *why;
  }
  questions.AskInto("GetDoctor", &S::GetDoctor, &A::mutable_doctor, kDoctorPatience);
  if (!context.options.all_nodes) return;
  examine.set_write_stacks(false);
  const auto nodes = questions.Ask("ExamineNodes", &S::ExamineNodes, examine, kNodesPatience);
  if (nodes == nullptr) return;
  for (const epd::v1::ExamineNodesResponse::Entry& entry : nodes->nodes()) AddNode(entry, archive);
}

int NumSilentNodes(const SupportArchive& archive) {
  return static_cast<int>(
      std::count_if(archive.by_node().begin(), archive.by_node().end(),
                    [](const auto& node) { return !node.second.problem().empty(); }));
}

std::string LogFileOf(const SupportArchive& archive) {
  for (const epd::v1::Setting& setting : archive.config().settings()) {
    if (setting.name() == "log_file") return setting.value();
  }
  return "";
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return std::strerror(wrote == 0 ? ENOSPC : errno);
    done += static_cast<size_t>(wrote);
  }
  return fsync(fd) == 0 || errno == EINVAL ? "" : std::strerror(errno);
}

// Gives it its name, unless there is a file of that name.
std::string Name(const std::string& unfinished, const std::string& path) {
  if (renameat2(AT_FDCWD, unfinished.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0)
    return "";
  if (errno != EINVAL && errno != ENOSYS) return std::strerror(errno);
  // The file system cannot do both at once.
  struct stat there;
  if (lstat(path.c_str(), &there) == 0) return std::strerror(EEXIST);
  return rename(unfinished.c_str(), path.c_str()) == 0 ? "" : std::strerror(errno);
}

// "" or why not. Nobody else may read it, and no file that is there is written over. What has the name is whole.
std::string Write(const std::string& path, const std::string& text) {
  const std::string unfinished = absl::StrCat(path, ".part-", getpid());
  std::string why;
  {
    const client::UniqueFd fd(
        open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd.get() < 0) return std::strerror(errno);
    why = WriteAll(fd.get(), text);
  }
  if (why.empty()) why = Name(unfinished, path);
  if (!why.empty()) unlink(unfinished.c_str());
  return why;
}

}  // namespace

Report RunSupportArchive(const CommandContext& context) {
  const std::string& path = context.options.file;
  SupportArchive archive;
  archive.set_epctl_version(kVersion);
  archive.set_taken_at(absl::FormatTime(absl::RFC3339_full, absl::Now(), absl::UTCTimeZone()));
  archive.set_host(HostName());
  // First: a worker that hangs when epd has ended is there for some seconds only.
  AddStacks(StackFolders(), kStacksPatience, archive);
  AskDaemon(context, archive);
  CheckLocally(context.options, context.search, *archive.mutable_local());
  AddMachineFiles(FindEpdProcesses(), LogFileOf(archive), archive);
  RedactAll(archive);
  const std::string text = ToJson(archive, /*one_line=*/false);
  if (const std::string why = Write(path, text); !why.empty())
    return {ExitCode::kUnhealthy, nullptr, "", absl::StrCat("cannot write '", path, "': ", why)};

  auto report = std::make_unique<SupportArchiveReport>();
  report->set_file(path);
  report->set_bytes(text.size());
  report->set_connected(archive.connected());
  *report->mutable_parts() = archive.parts();
  std::string table = SupportArchiveTable(*report);
  if (const int num = NumSilentNodes(archive); num > 0) {
    return {ExitCode::kDegraded, std::move(report), std::move(table),
            absl::StrCat(num, " of ", archive.by_node_size(),
                         " nodes did not answer; what the others say is in it")};
  }
  if (archive.connected()) return {ExitCode::kOk, std::move(report), std::move(table), ""};
  const auto& parts = archive.parts();
  const auto asked = std::find_if(parts.begin(), parts.end(), [](const SupportArchive::Part& part) {
    return part.what() == kFirstQuestion;
  });
  const std::string& why = asked->problem();
  return {
      ExitCode::kDegraded, std::move(report), std::move(table),
      absl::StrCat("the daemon did not answer, so the archive has only what this process can see: ",
                   why)};
}

Report RunWhyFromArchive(const CommandContext& context) {
  const Options& options = context.options;
  const auto bad = [&](const std::string& problem) {
    return Report{ExitCode::kUsage, nullptr, "", absl::StrCat(options.from, ": ", problem)};
  };
  std::ifstream file(options.from, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return bad(absl::StrCat("cannot be read: ", std::strerror(errno)));
  SupportArchive archive;
  google::protobuf::util::JsonParseOptions parse;
  parse.ignore_unknown_fields = true;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text.str(), &archive, parse);
  if (!parsed.ok())
    return bad("got something else, expected what `epctl support-archive` has written");
  std::string known;
  for (const epd::v1::ExplainGroupResponse& why : archive.why()) {
    const bool is_meant =
        options.group.empty() && (!why.culprit().empty() || archive.why_size() == 1);
    if (why.name() != options.group && !is_meant) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", why.name());
      continue;
    }
    std::string table = absl::StrCat("at ", archive.taken_at(), " on host ", archive.host(), ":\n",
                                     WhyText(why, options.all_past));
    return {ExitCode::kOk, std::make_unique<epd::v1::ExplainGroupResponse>(why), std::move(table),
            ""};
  }
  const std::string missing =
      options.group.empty()
          ? "it has no group in which a rank is waited for; name one: "
          : absl::StrCat("there is no group '", options.group, "' in it; it has ");
  return bad(absl::StrCat(missing, known.empty() ? "none" : known,
                          archive.connected() ? "" : ", for the daemon did not answer"));
}

}  // namespace epd::cli
