// Where a node's worker takes streams of the other nodes.
#pragma once

#include <string>

namespace epd {

// `asked` if it is set. Else, in a cluster, port 0 (any) of the host of `listen`, and where that is
// every address of the machine or nothing, of the address with which this machine reaches
// `coordinator`. Empty: this node is alone, or no address is known.
std::string WireListen(const std::string& asked, const std::string& listen,
                       const std::string& coordinator);

}  // namespace epd
