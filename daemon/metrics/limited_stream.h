// One connection of HTTP that cannot last, nor send, for ever.
#pragma once

#include <httplib.h>

#include <cstddef>
#include <functional>
#include <string>

#include "absl/time/time.h"

namespace epd {

// httplib bounds the time of each read, not of a request, and no line of a header: here both end. Past a limit every
// read and write fails.
class LimitedStream final : public httplib::Stream {
 public:
  struct Limits {
    absl::Duration time = absl::Seconds(5);  // For the handshake, the request and the response.
    size_t request_bytes = 16 * 1024;
  };
  // `socket` and `ssl` (null: plain; not connected yet) outlive this.
  LimitedStream(int socket, SSL* ssl, const Limits& limits);

  // The handshake of TLS; true at once where there is none.
  bool Accept();

  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  // Repeats `attempt` until it says something else than to wait for `events`; -1: the time is over.
  ssize_t Repeat(short events, const std::function<ssize_t()>& attempt);

  const int socket_;
  SSL* const ssl_;
  const absl::Time deadline_;
  size_t bytes_left_;
};

}  // namespace epd
