// What a killed epd leaves behind.
#pragma once

#include <string>

namespace epd::client {

// Removes the files of the epd that served `socket_path`, which has just refused a connection, if there is
// none: the lock that it holds for as long as it lives is free, and stays taken meanwhile, and nobody is behind the
// sockets: a lock file can be removed under a living epd. Does nothing where
// this user may not, or cannot tell.
void RemoveStaleFiles(const std::string& socket_path);

}  // namespace epd::client
