// What an address is, and what it says about who can read what is sent to it.
#pragma once

#include <cstdint>
#include <string>

namespace epd {

// "10.0.0.2" of "10.0.0.2:7070", "::1" of "[::1]:7070" and of gRPC's "ipv6:[::1]:7070".
std::string HostOf(const std::string& address);

// Whether `text` is host:port, IPv6 as [::1]:port, with a port from `min_port` to `max_port`.
bool IsHostPort(const std::string& text, uint32_t min_port, uint32_t max_port = 65535);

// Traffic does not leave the machine: 127.0.0.0/8, ::1, "localhost", a Unix socket ("unix:...").
bool IsLoopback(const std::string& host);

// Loopback, RFC 1918, link-local or unique local; also what does not parse as an address (a name).
bool IsPrivate(const std::string& host);

}  // namespace epd
