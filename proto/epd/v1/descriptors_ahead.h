// A message with more descriptors than one datagram takes: datagrams with nothing but descriptors go before it.
//
// Between epd and its workers, and from epd to clients. Such a datagram is one byte that no protobuf message begins with, and
// what it brings belongs to the next message.
#pragma once

#include <string_view>

namespace epd {

inline constexpr std::string_view kDescriptorsAhead{"\0", 1};

}  // namespace epd
