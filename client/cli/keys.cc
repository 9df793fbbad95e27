#include "client/cli/keys.h"

#include <poll.h>
#include <unistd.h>

namespace epd::cli {

namespace {

constexpr char kInterrupt = 3;

}  // namespace

Keys::Keys() {
  termios now{};
  // One in the background may not change the terminal.
  if (tcgetattr(STDIN_FILENO, &now) != 0 || tcgetpgrp(STDIN_FILENO) != getpgrp()) return;
  before_ = now;
  now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
  tcsetattr(STDIN_FILENO, TCSANOW, &now);
}

Keys::~Keys() {
  if (before_.has_value()) tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
}

char Keys::Wait(absl::Duration patience) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  char key = 0;
  if (poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return 0;
  const bool ends = read(STDIN_FILENO, &key, 1) != 1 || key == kInterrupt;
  return ends ? 'q' : key;
}

}  // namespace epd::cli
