#include "daemon/metrics/limited_stream.h"

#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "daemon/node/loop/event_loop.h"

namespace epd {

LimitedStream::LimitedStream(int socket, SSL* ssl, const Limits& limits)
    : socket_(socket),
      ssl_(ssl),
      deadline_(MonotonicNow() + limits.time),
      bytes_left_(limits.request_bytes) {}

ssize_t LimitedStream::Repeat(short events, const std::function<ssize_t()>& attempt) {
  while (true) {
    const absl::Duration left = deadline_ - MonotonicNow();
    if (left <= absl::ZeroDuration()) return -1;
    const ssize_t done = attempt();
    if (done > 0) return done;
    short wanted = events;
    if (ssl_ != nullptr) {
      const int why = SSL_get_error(ssl_, static_cast<int>(done));
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) return -1;
      wanted = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    } else if (done == 0) {
      return 0;
    } else if (errno != EAGAIN && errno != EINTR) {
      return -1;
    }
    pollfd ready = {socket_, wanted, 0};
    poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
}

bool LimitedStream::Accept() {
  return ssl_ == nullptr || Repeat(POLLIN, [this] { return SSL_accept(ssl_); }) == 1;
}

ssize_t LimitedStream::read(char* ptr, size_t size) {
  const size_t asked = std::min(size, bytes_left_);
  if (asked == 0) return -1;
  const ssize_t got = Repeat(POLLIN, [&]() -> ssize_t {
    return ssl_ != nullptr ? SSL_read(ssl_, ptr, static_cast<int>(asked))
                           : recv(socket_, ptr, asked, MSG_DONTWAIT);
  });
  if (got > 0) bytes_left_ -= static_cast<size_t>(got);
  return got;
}

ssize_t LimitedStream::write(const char* ptr, size_t size) {
  const size_t asked = std::min<size_t>(size, 1 << 20);
  return Repeat(POLLOUT, [&]() -> ssize_t {
    return ssl_ != nullptr ? SSL_write(ssl_, ptr, static_cast<int>(asked))
                           : send(socket_, ptr, asked, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

// Nothing here looks at who calls.
void LimitedStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}
void LimitedStream::get_local_ip_and_port(std::string& ip, int& port) const {
  get_remote_ip_and_port(ip, port);
}

}  // namespace epd
