// The edge of port_doctor.h: sockets.
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/core/unique_fd.h"
#include "daemon/doctor/findings.h"
#include "daemon/doctor/port_doctor.h"

namespace epd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(3);
// So long a connection must hold: gRPC speaks first at once where links are plain, and a proxy that has nobody behind it
// hangs up.
constexpr absl::Duration kHolds = absl::Milliseconds(300);

struct Trial {
  UniqueFd socket;
  bool connected = false;
  std::optional<PortResult> result;
  std::string detail;

  void End(PortResult how, const std::string& why) {
    result = how;
    detail = why;
    socket.reset();
  }
  void EndWith(int error) { End(ResultOfConnect(error), error == 0 ? "" : std::strerror(error)); }
};

// The host and port of "host:port", "[v6]:port".
std::pair<std::string, std::string> Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {address, ""};
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return {host, address.substr(colon + 1)};
}

void Begin(const std::string& address, Trial& trial) {
  const auto [host, port] = Split(address);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    return trial.End(PortResult::kUnknownName, gai_strerror(error));
  trial.socket.reset(
      socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, found->ai_protocol));
  const int done = connect(trial.socket.get(), found->ai_addr, found->ai_addrlen);
  const int error = done == 0 ? 0 : errno;
  freeaddrinfo(found);
  trial.connected = done == 0;
  if (error != 0 && error != EINPROGRESS) trial.EndWith(error);
}

// Something has come to the socket of `trial`.
void Look(Trial& trial) {
  if (!trial.connected) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(trial.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return trial.EndWith(error);
    trial.connected = true;
    return;
  }
  char first = 0;
  const ssize_t got = recv(trial.socket.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) return trial.EndWith(0);
  if (got == 0) return trial.End(PortResult::kReset, "closed");
  if (errno != EAGAIN) trial.End(PortResult::kReset, std::strerror(errno));
}

// Looks at what came until `until`; false: all have ended.
bool PollOnce(std::vector<Trial>& trials, absl::Time until) {
  std::vector<pollfd> polled;
  std::vector<Trial*> open;
  for (Trial& trial : trials) {
    if (trial.result.has_value()) continue;
    open.push_back(&trial);
    polled.push_back(
        {trial.socket.get(), static_cast<short>(trial.connected ? POLLIN : POLLOUT), 0});
  }
  const absl::Duration left = until - absl::Now();
  if (open.empty() || left <= absl::ZeroDuration()) return false;
  poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  for (size_t i = 0; i < open.size(); ++i) {
    if (polled[i].revents != 0) Look(*open[i]);
  }
  return true;
}

}  // namespace

v1::GetDoctorResponse TryPorts(const std::vector<PortToTry>& ports, absl::Duration patience) {
  std::vector<Trial> trials(ports.size());
  for (size_t i = 0; i < ports.size(); ++i) Begin(ports[i].address, trials[i]);
  const absl::Time end = absl::Now() + patience;
  const auto connecting = [&] {
    for (const Trial& trial : trials) {
      if (!trial.result.has_value() && !trial.connected) return true;
    }
    return false;
  };
  while (connecting() && PollOnce(trials, end)) {
  }
  for (Trial& trial : trials) {
    if (!trial.result.has_value() && !trial.connected) trial.End(PortResult::kTimedOut, "");
  }
  const absl::Time held = absl::Now() + kHolds;
  while (PollOnce(trials, held)) {
  }
  v1::GetDoctorResponse response;
  for (size_t i = 0; i < ports.size(); ++i) {
    *response.add_findings() =
        DiagnosePort(ports[i], trials[i].result.value_or(PortResult::kOpen), trials[i].detail);
  }
  return response;
}

int PortDoctorMain(const std::string& text) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const v1::GetDoctorResponse response = TryPorts(PortsFromText(text), kPatience);
  return response.SerializeToFileDescriptor(kDoctorFd) ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace epd
