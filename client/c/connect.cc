#include "client/c/connect.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "client/c/autostart.h"
#include "client/c/running_deadline.h"
#include "client/c/stale_socket.h"
#include "proto/epd/v1/private_folder.h"
#include "proto/stacks/stack_writer.h"

namespace epd::client {
namespace {

constexpr std::chrono::milliseconds kRetryPause{20};

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// What people see in `epctl sessions`. Only printable ASCII: protobuf refuses strings that are no
// UTF-8.
std::string ClientName(const std::string& given) {
  std::string name = given;
  if (name.empty()) {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    name.assign(std::istreambuf_iterator<char>(file), {});
    while (!name.empty() && name.back() == '\0') name.pop_back();
  }
  if (name.size() > limits::kNameBytes) name.resize(limits::kNameBytes);
  for (char& c : name) {
    if (c == '\0') c = ' ';
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return name;
}

// epd takes no other.
std::string Absolute(const std::string& path) {
  char folder[PATH_MAX];
  const bool is_whole = path[0] == '/' || getcwd(folder, sizeof folder) == nullptr;
  return is_whole ? path : std::string(folder) + "/" + path;
}

Status NobodyThere(const std::string& looked, const std::string& what_to_do) {
  return WithCode(MakeStatus(Code::kUnavailable, "%s: no epd answers; looked at %s",
                             what_to_do.c_str(), looked.c_str()));
}

// By the user's leave this process writes its stacks on SIGUSR2, as epd does.
Status StartStacks() {
  const std::string asked = Environment("EPD_STACKS");
  if (asked.empty() || asked == "no") return {};
  if (asked != "yes") {
    return MakeStatus(Code::kInvalidArgument, "EPD_STACKS: got '%s', expected yes or no",
                      asked.c_str());
  }
  static const std::string problem = [] {
    // A program may have code that was made at run time.
    std::string bad = stacks::Start(stacks::Frames::kScanned);
    if (bad.empty()) std::atexit(stacks::Stop);
    return bad;
  }();
  if (problem.empty()) return {};
  return MakeStatus(Code::kFailedPrecondition,
                    "EPD_STACKS=yes, but this process cannot write its stacks: %s; mend it or "
                    "unset EPD_STACKS",
                    problem.c_str());
}

}  // namespace

Status ConnectToDaemon(const ConnectOptions& options, std::shared_ptr<Session>* session) {
  if (Status bad = StartStacks(); !bad.ok()) return WithCode(bad);
  Clock::time_point deadline = Clock::now() + options.timeout;
  const std::string name = ClientName(options.client_name);
  std::string asked = options.socket_path.empty() ? Environment("EPD_SOCKET") : options.socket_path;
  const PrivateFolder folder = PrivateFolder::OfThisProcess();
  const std::string path = folder.socket_path();
  // Who was on the private one before finds a new one there, too; a user's EPD_SOCKET is for a daemon of the user's.
  const bool private_again = options.socket_path == path && Environment("EPD_SOCKET").empty();
  if (!asked.empty() && !private_again) {
    const Status status = Session::Attach(asked, name, deadline, session);
    if (status.code != Code::kNotFound) return WithCode(status);
    return NobodyThere(status.message,
                       "start one there with 'epd --socket=" + Absolute(asked) + "'" +
                           (Environment("EPD_SOCKET").empty() ? "" : ", or unset EPD_SOCKET"));
  }
  Status node{Code::kNotFound, ""};
  if (asked.empty()) node = Session::Attach(kNodeSocket, name, deadline, session);
  if (node.code != Code::kNotFound) return WithCode(node);
  const bool may_start = options.autostart && Environment("EPD_AUTOSTART") != "0";
  while (true) {
    const std::string looked = node.message.empty() ? "" : "; no epd answers at " + node.message;
    if (Status bad = OfFolder(folder.Check(), looked); !bad.ok()) return WithCode(bad);
    Status status = Session::Attach(path, name, deadline, session);
    // UNAVAILABLE: it is on its way out, so the next try finds none, or a new one.
    if (status.code != Code::kNotFound && status.code != Code::kUnavailable)
      return WithCode(status);
    if (Clock::now() >= deadline) return WithCode(status);
    if (status.code == Code::kNotFound && !may_start) {
      return NobodyThere(
          asked.empty() ? "EPD_SOCKET (not set), " + node.message + " and " + status.message
                        : status.message,
          "unset EPD_AUTOSTART, whose 0 forbids to start a private one, or start 'epd' and set "
          "EPD_SOCKET to its socket");
    }
    if (status.code == Code::kNotFound) {
      PrivateDaemon daemon{folder, options.daemon_path, RunningDeadline(deadline, Clock::now())};
      if (status = StartPrivateDaemon(daemon); !status.ok()) return WithCode(status);
      deadline = daemon.deadline.at();
      continue;
    }
    RunningDeadline pause(deadline, Clock::now());
    std::this_thread::sleep_for(kRetryPause);
    pause.Passed(Clock::now());
    deadline = pause.at();
  }
}

Status FindSocket(const std::string& asked, std::string* path) {
  *path = asked.empty() ? Environment("EPD_SOCKET") : asked;
  if (path->empty()) *path = kNodeSocket;
  const bool is_named = *path != kNodeSocket;
  if (std::string never = WhyNoneCanAnswer(*path); !never.empty())
    return WithCode({Code::kFailedPrecondition, std::move(never)});
  if (is_named || access(path->c_str(), F_OK) == 0) return {};
  const PrivateFolder folder = PrivateFolder::OfThisProcess();
  if (Status bad = OfFolder(folder.Check()); !bad.ok()) return WithCode(bad);
  if (access(folder.socket_path().c_str(), F_OK) == 0) *path = folder.socket_path();
  return {};
}

}  // namespace epd::client
