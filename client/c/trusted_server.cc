#include "client/c/trusted_server.h"

#include <pwd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace epd::client {
namespace {

std::string Stripped(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

bool ParseUid(const std::string& text, uid_t* uid) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *uid);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

bool FindUser(const std::string& name, uid_t* uid) {
  if (ParseUid(name, uid)) return true;
  char text[4096];
  passwd entry = {};
  passwd* found = nullptr;
  if (getpwnam_r(name.c_str(), &entry, text, sizeof text, &found) != 0 || found == nullptr)
    return false;
  *uid = found->pw_uid;
  return true;
}

Status ReadConfig(const std::string& path, std::vector<uid_t>* uids) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) return {};
  if (facts.st_uid != 0 || (facts.st_mode & 022) != 0) {
    return MakeStatus(Code::kPermissionDenied,
                      "%s says whom to trust and belongs to uid %u with mode %o; expected root's, "
                      "writable by nobody else: chown root and chmod 644 it",
                      path.c_str(), facts.st_uid, facts.st_mode & 07777);
  }
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string text = Stripped(line.substr(0, line.find('#')));
    if (text.empty()) continue;
    const size_t equals = text.find('=');
    uid_t uid = 0;
    if (equals == std::string::npos || Stripped(text.substr(0, equals)) != "server_user" ||
        !FindUser(Stripped(text.substr(equals + 1)), &uid)) {
      return MakeStatus(Code::kInvalidArgument,
                        "line %d of %s: got '%s', expected `server_user = NAME or UID` of a user",
                        number, path.c_str(), text.c_str());
    }
    uids->push_back(uid);
  }
  return {};
}

// Writable by somebody else than the owner and a group of one's own, as users' files are under umask 002.
bool OpenToOthers(const struct stat& facts) {
  if ((facts.st_mode & S_IWOTH) != 0) return (facts.st_mode & S_ISVTX) == 0;
  return (facts.st_mode & S_IWGRP) != 0 && facts.st_gid != getegid() && facts.st_gid != 0;
}

}  // namespace

Status TrustedServers(const std::string& config, std::vector<uid_t>* uids) {
  *uids = {geteuid()};
  if (geteuid() != 0) uids->push_back(0);
  const char* variable = secure_getenv("EPD_SERVER_UID");
  if (variable != nullptr && *variable != '\0') {
    uid_t uid = 0;
    if (!ParseUid(variable, &uid)) {
      return MakeStatus(Code::kInvalidArgument,
                        "EPD_SERVER_UID: got '%s', expected the number of the daemon's user",
                        variable);
    }
    uids->push_back(uid);
  }
  return ReadConfig(config, uids);
}

Status CheckServer(int fd, const std::string& path, const std::string& config) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return MakeStatus(Code::kUnavailable, "%s: SO_PEERCRED: %s", path.c_str(),
                      std::strerror(errno));
  if (peer.uid == geteuid() || peer.uid == 0) return {};
  std::vector<uid_t> uids;
  if (Status bad = TrustedServers(config, &uids); !bad.ok()) return bad;
  if (std::find(uids.begin(), uids.end(), peer.uid) != uids.end()) return {};
  std::string expected;
  for (const uid_t uid : uids) expected += (expected.empty() ? "" : ", ") + std::to_string(uid);
  return MakeStatus(Code::kPermissionDenied,
                    "%s: uid %u (pid %d) listens there, expected one of %s; nothing was sent. If "
                    "that user runs the "
                    "node's epd, let root write `server_user = %u` into %s, or in a container set "
                    "EPD_SERVER_UID=%u; else remove the socket, or set EPD_SOCKET to another",
                    path.c_str(), peer.uid, peer.pid, expected.c_str(), peer.uid, config.c_str(),
                    peer.uid);
}

std::string WhyNotRun(const std::string& path) {
  for (const std::string& place : {path, path.substr(0, std::max<size_t>(path.rfind('/'), 1))}) {
    struct stat facts = {};
    if (stat(place.c_str(), &facts) != 0) return std::strerror(errno);
    const std::string what = place == path ? "it" : "its folder";
    if (facts.st_uid != geteuid() && facts.st_uid != 0)
      return what + " belongs to uid " + std::to_string(facts.st_uid);
    if (OpenToOthers(facts)) return "others may write to " + what;
  }
  return "";
}

}  // namespace epd::client
