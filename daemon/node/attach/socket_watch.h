// Whether the files of epd's sockets are still its own: a cleaner of old files, a hand or another epd may remove or replace one while
// epd runs, and whoever comes then finds nobody, or somebody else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/unique_fd.h"
#include "daemon/node/loop/event_loop.h"

namespace epd {

// Control thread.
class SocketWatch {
 public:
  struct Socket {
    std::string path;
    std::function<bool()> is_there;       // The file is there and epd's own.
    std::function<absl::Status()> renew;  // Listens there anew.
  };
  // In this order: what is behind one that cannot be renewed is left alone, too. `tell` hears what is wrong, and "" once nothing is.
  SocketWatch(std::vector<Socket> sockets, std::function<void(std::string)> tell)
      : sockets_(std::move(sockets)), tell_(std::move(tell)) {}

  // Looks once a second from now on; this outlives `loop`'s last turn. Errors as EventLoop::Add.
  absl::Status Start(EventLoop& loop);
  // No more.
  void Stop() { stopped_ = true; }

  // A file that is not epd's own any more is said once, and made anew where nobody else serves there.
  void Look();

 private:
  const std::vector<Socket> sockets_;
  const std::function<void(std::string)> tell_;
  UniqueFd timer_;
  std::string problem_;
  bool stopped_ = false;
};

}  // namespace epd
