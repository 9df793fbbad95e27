// What an epd leaves behind that was killed, and where none will come back.
#pragma once

#include <string>

namespace epd::client {

// Removes the files of the epd that served `socket_path`, which has just refused a connection, if there is
// none: the lock that it holds for as long as it lives is free, and stays taken meanwhile, and nobody is behind the
// sockets: a lock file can be removed under a living epd. Does nothing where
// this user may not, or cannot tell.
void RemoveStaleFiles(const std::string& socket_path);

// Why no epd can ever answer at `socket_path`, where connecting failed; "": one may. Its folder, or the socket's file, is a
// mount of something that was deleted outside, which a container has until it ends; or there is something else than a socket.
std::string WhyNoneCanAnswer(const std::string& socket_path);

}  // namespace epd::client
