#include "daemon/worker/shell/hello.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace epd {
namespace {

constexpr int kHelloLimitMs = 30'000;

}  // namespace

absl::StatusOr<EpdMessage> ReceiveHello(EpdSocket& socket) {
  for (;;) {
    pollfd watched = {.fd = socket.fd(), .events = POLLIN, .revents = 0};
    const int ready = poll(&watched, 1, kHelloLimitMs);
    if (ready < 0 && errno == EINTR) return absl::UnavailableError("asked to stop");
    if (ready <= 0) return absl::DeadlineExceededError("epd has not said hello in 30 s");
    absl::StatusOr<std::optional<EpdMessage>> message = socket.Receive();
    if (!message.ok()) return message.status();
    if (!message->has_value()) continue;
    if (!(*message)->body.has_hello() || (*message)->fds.size() != 1) {
      return absl::InvalidArgumentError("epd's first message is not a hello with one descriptor");
    }
    if ((*message)->body.hello().staging_bytes() == 0) {
      return absl::InvalidArgumentError("epd's hello names no staging_bytes");
    }
    return **std::move(message);
  }
}

v1::FromWorker ReadyMessage(const ServedBackends& served, const NcclLibrary& nccl,
                            const WireAddresses& addresses) {
  const Backend& backend = *served.backends.front();
  v1::FromWorker message;
  v1::WorkerReady& ready = *message.mutable_ready();
  ready.set_backend(backend.name());
  ready.set_simd(backend.simd());
  ready.set_nccl_version(nccl.version());
  ready.set_nccl_path(nccl.path());
  ready.set_nccl_problem(nccl.problem());
  ready.set_pid(getpid());
  if (served.cuda.has_value()) *ready.mutable_cuda() = *served.cuda;
  ready.set_cuda_problem(served.no_cuda);
  ready.set_wire_address(addresses.wire);
  ready.set_local_address(addresses.local);
  ready.set_wire_problem(addresses.problem);
  return message;
}

}  // namespace epd
