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

// fe80::/10, with a zone (fe80::1%eth0) or without: it means something on one link only, and the zone is the name that
// one machine has for that link.
bool IsLinkLocal(const std::string& host);

// "eth0" of "fe80::1%eth0"; "": it has none.
std::string ZoneOf(const std::string& host);

// Why this machine cannot connect to `host`, as far as that can be told without asking anybody: a link-local address
// without a zone, or with one that is no interface here; an IPv6 address where IPv6 is off. "": it may.
std::string WhyNotDialled(const std::string& host);

// Why nothing can listen at `host` here: its family is off, it is no address of this machine, the name has none. "": a
// port there may be bound, unless somebody has it. For a name the resolver is asked.
std::string WhyNotBound(const std::string& host);

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
