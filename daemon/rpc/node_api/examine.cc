#include "daemon/rpc/node_api/examine.h"

#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/observe/log.h"
#include "daemon/rpc/node_api/node_answers.h"
#include "daemon/rpc/node_api/own_findings.h"
#include "proto/stacks/page_reader.h"

namespace epd {
namespace {

// epd and its workers.
std::vector<int> ProcessesOf(const Node& node) {
  std::vector<int> pids = {getpid()};
  for (const auto& [name, entry] : node.workers()) {
    if (const int pid = entry->supervisor.figures().pid; pid != 0) pids.push_back(pid);
  }
  return pids;
}

// Takes what there is room for; of the rest it says how long it is.
class Room {
 public:
  explicit Room(v1::NodeExamination& out) : out_(out) {}

  bool Has(const char* what, size_t bytes) {
    const size_t used = out_.ByteSizeLong();
    if (used + bytes <= kMaxExaminationBytes) return true;
    out_.add_left_out(absl::StrCat(what, ": ", bytes, " bytes, and all of an answer may have ",
                                   kMaxExaminationBytes, "; ask the node itself"));
    return false;
  }

 private:
  v1::NodeExamination& out_;
};

void AddStacks(const Node& node, Room& room, v1::NodeExamination& out) {
  for (const int pid : ProcessesOf(node)) {
    const std::unique_ptr<stacks::StackPage> page = stacks::ReadPageOf(pid);
    if (page == nullptr || page->asked_unix_ns.load() == 0) continue;
    stacks::UsedParts parts = stacks::TakeUsedParts(*page);
    if (!room.Has("stacks", parts.modules.size() + parts.threads.size())) return;
    v1::NodeExamination::Stacks& added = *out.add_stacks();
    added.set_modules(std::move(parts.modules));
    added.set_threads(std::move(parts.threads));
  }
}

// "": it is not there, or has nothing. Files of the kernel only: no disk is waited for.
std::string ReadKernelFile(const char* path) {
  constexpr std::streamsize kMostBytes = 8 << 10;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  file.read(text.data(), kMostBytes);
  text.resize(static_cast<size_t>(file.gcount()));
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte >= 0x7f) c = '?';
  }
  return text;
}

void AddMachine(const Node& node, Room& room, v1::NodeExamination& out) {
  v1::GetDoctorResponse found = DiagnoseSelf(node);
  if (room.Has("findings", found.ByteSizeLong()))
    *out.mutable_findings() = std::move(*found.mutable_findings());
  for (const char* path : {"/proc/version", "/proc/loadavg", "/proc/meminfo", "/proc/pressure/cpu",
                           "/proc/pressure/memory", "/proc/self/status", "/proc/self/limits",
                           "/proc/self/cgroup", "/sys/devices/system/node/online",
                           "/sys/devices/system/cpu/online", "/proc/driver/nvidia/version"}) {
    std::string text = ReadKernelFile(path);
    if (text.empty() || !room.Has(path, text.size())) continue;
    v1::NodeExamination::File& added = *out.add_files();
    added.set_path(path);
    added.set_text(std::move(text));
  }
}

v1::NodeExamination Examine(const Node& node) {
  v1::NodeExamination out;
  Room room(out);
  const auto add = [&]<typename Request, typename Response>(
                       const char* what, const Request& request,
                       Response* (v1::NodeExamination::*field)()) {
    Response response;
    if (!Fill(node, request, response).ok()) return;
    if constexpr (std::is_same_v<Response, v1::GetFiguresResponse>) response.clear_status();
    if (room.Has(what, response.ByteSizeLong())) *(out.*field)() = std::move(response);
  };
  add("status", v1::GetStatusRequest(), &v1::NodeExamination::mutable_status);
  add("config", v1::GetConfigRequest(), &v1::NodeExamination::mutable_config);
  AddStacks(node, room, out);
  AddMachine(node, room, out);
  std::string log = RecentLog();
  if (room.Has("log", log.size())) out.set_log(std::move(log));
  add("figures", v1::GetFiguresRequest(), &v1::NodeExamination::mutable_figures);
  add("sessions", v1::ListSessionsRequest(), &v1::NodeExamination::mutable_sessions);
  add("memory", v1::GetMemoryRequest(), &v1::NodeExamination::mutable_memory);
  return out;
}

}  // namespace

void ExamineLocally(Node& node, const v1::ExamineNodesRequest& request,
                    std::function<void(const v1::NodeExamination&)> done) {
  if (request.write_stacks()) {
    for (const int pid : ProcessesOf(node)) stacks::AskForStacks(pid);
  }
  node.WithFreshFigures([&node, done = std::move(done)] { done(Examine(node)); });
}

}  // namespace epd
