// Where a node's epd may be found, in the order in which the client library looks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/c/unique_fd.h"
#include "proto/epd/v1/private_folder.h"

namespace epd::cli {

// What the search depends on; tests give their own.
struct SearchContext {
  std::function<const char*(const char*)> getenv;  // NULL: unset.
  unsigned uid = 0;
  std::string node_dir = kNodeFolder;  // The node's own daemon.
};

struct SocketCandidate {
  std::string attach_path;
  // "--socket", "EPD_SOCKET", "the node's daemon", "this user's private daemon".
  std::string origin;
  std::string problem = {};  // Why no client of this user looks there; "": they do.
};

// `flag` (--socket) alone if it is set, else EPD_SOCKET alone if it is set, else the node's and then this user's private one
// (proto/epd/v1/private_folder.h).
std::vector<SocketCandidate> FindCandidates(const std::string& flag, const SearchContext& context);

// The gRPC socket beside an attach socket: "/run/epd/epd.sock" -> "/run/epd/epd-grpc.sock". A path
// that names a gRPC socket already is returned as it is.
std::string GrpcPath(const std::string& attach_path);

enum class ProbeResult {
  kListening,
  kMissing,
  kRefused,
  kDenied,
  kStranger,
  kTooLong,
  kNever,  // client/c/stale_socket.h
  kOther
};

struct Probe {
  ProbeResult result = ProbeResult::kOther;
  std::string text;     // "nobody listens (left behind by a daemon that was killed?)"
  client::UniqueFd fd;  // kListening: connected, and nothing is said yet.
};

// Connects to a Unix stream socket. Never blocks. Who listens must be whom the client library would believe
// (client/c/trusted_server.h), else it is a kStranger.
Probe ProbeSocket(const std::string& path);

}  // namespace epd::cli
