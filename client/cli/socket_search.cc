#include "client/cli/socket_search.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/c/stale_socket.h"
#include "client/c/trusted_server.h"

namespace epd::cli {
namespace {

constexpr char kSocketSuffix[] = ".sock";
constexpr char kGrpcSuffix[] = "-grpc.sock";

Probe ProbeOf(int error) {
  switch (error) {
    case EAGAIN:
      return {ProbeResult::kOther, "somebody listens, and takes no more connections", {}};
    case ENOENT:
    case ENOTDIR:
      return {ProbeResult::kMissing, "no such socket", {}};
    case ECONNREFUSED:
      return {
          ProbeResult::kRefused, "nobody listens (left behind by a daemon that was killed?)", {}};
    case EACCES:
    case EPERM:
      return {ProbeResult::kDenied, "permission denied", {}};
    default:
      return {ProbeResult::kOther, std::strerror(error), {}};
  }
}

}  // namespace

std::vector<SocketCandidate> FindCandidates(const std::string& flag, const SearchContext& context) {
  if (!flag.empty()) return {{flag, "--socket"}};
  const char* from_env = context.getenv("EPD_SOCKET");
  if (from_env != nullptr && *from_env != '\0') return {{from_env, "EPD_SOCKET"}};
  const PrivateFolder own(context.getenv("XDG_RUNTIME_DIR"), context.uid);
  return {{context.node_dir + "/epd.sock", "the node's daemon"},
          {own.socket_path(), "this user's private daemon", own.Check().text}};
}

std::string GrpcPath(const std::string& attach_path) {
  if (absl::EndsWith(attach_path, kGrpcSuffix)) return attach_path;
  if (!absl::EndsWith(attach_path, kSocketSuffix)) return attach_path + "-grpc";
  return attach_path.substr(0, attach_path.size() - std::strlen(kSocketSuffix)) + kGrpcSuffix;
}

Probe ProbeSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return {ProbeResult::kTooLong,
            absl::StrCat("the path has ", path.size(), " bytes, at most ",
                         sizeof address.sun_path - 1, " are possible"),
            {}};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  client::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return {ProbeResult::kOther, absl::StrCat("socket: ", std::strerror(errno)), {}};
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    Probe probe = ProbeOf(errno);
    const bool is_gone =
        probe.result == ProbeResult::kMissing || probe.result == ProbeResult::kRefused;
    if (std::string why = is_gone ? client::WhyNoneCanAnswer(path) : ""; !why.empty())
      return {ProbeResult::kNever, std::move(why), {}};
    return probe;
  }
  const client::Status known = client::CheckServer(fd.get(), path);
  if (!known.ok()) return {ProbeResult::kStranger, known.message, {}};
  return {ProbeResult::kListening, "a daemon listens", std::move(fd)};
}

}  // namespace epd::cli
