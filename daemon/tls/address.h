// What an address is, and what it says about who can read what is sent to it.
#pragma once

#include <cstdint>
#include <string>

namespace epd {

// "10.0.0.2" of "10.0.0.2:7070", "::1" of "[::1]:7070" and of gRPC's "ipv6:[::1]:7070".
std::string HostOf(const std::string& address);

// Whether `text` is host:port, IPv6 as [::1]:port, with a port from `min_port` to `max_port`.
bool IsHostPort(const std::string& text, uint32_t min_port, uint32_t max_port = 65535);

// `wanted`, with the port of `served` where it leaves that open (0) at the same host: others know the one that was served at.
std::string KeepPort(const std::string& wanted, const std::string& served);

// Traffic does not leave the machine: 127.0.0.0/8, ::1, "localhost", a Unix socket ("unix:...").
bool IsLoopback(const std::string& host);

// Not a name.
bool IsNumeric(const std::string& host);

// The address that the kernel would send from to `peer`, host:port; IPv6 in brackets. Nothing is sent. "": there is no
// way there. For a name the resolver is asked, which may take its time.
std::string SourceTowards(const std::string& peer);

// In front of host:port, where an address to listen at is meant: the one that the way there begins at; or that only if it
// is loopback.
inline constexpr char kTowards[] = "towards:";
inline constexpr char kTowardsLoopback[] = "towards-loopback:";

}  // namespace epd
