// Where a node's epd may be found, in the order in which the client library looks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/c/unique_fd.h"

namespace epd::cli {

// What the search depends on; tests give their own.
struct SearchContext {
  std::function<const char*(const char*)> getenv;  // NULL: unset.
  unsigned uid = 0;
  std::string node_dir = "/run/epd";  // The node's own daemon.
};

struct SocketCandidate {
  std::string attach_path;
  // "--socket", "EPD_SOCKET", "the node's daemon", "this user's private daemon".
  std::string origin;
};

// `flag` (--socket) alone if it is set, else EPD_SOCKET alone if it is set, else /run/epd/epd.sock
// and then $XDG_RUNTIME_DIR/epd/epd.sock or /tmp/epd-<uid>/epd.sock.
std::vector<SocketCandidate> FindCandidates(const std::string& flag, const SearchContext& context);

// The gRPC socket beside an attach socket: "/run/epd/epd.sock" -> "/run/epd/epd-grpc.sock". A path
// that names a gRPC socket already is returned as it is.
std::string GrpcPath(const std::string& attach_path);

enum class ProbeResult { kListening, kMissing, kRefused, kDenied, kStranger, kTooLong, kOther };

struct Probe {
  ProbeResult result = ProbeResult::kOther;
  std::string text;     // "nobody listens (left behind by a daemon that was killed?)"
  client::UniqueFd fd;  // kListening: connected, and nothing is said yet.
};

// Connects to a Unix stream socket. Never blocks. Who listens must be whom the client library would believe
// (client/c/trusted_server.h), else it is a kStranger.
Probe ProbeSocket(const std::string& path);

}  // namespace epd::cli
