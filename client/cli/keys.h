// Keys of a terminal, one at a time.
#pragma once

#include <termios.h>

#include <optional>

#include "absl/time/time.h"

namespace epd::cli {

// While it lives, standard input gives keys as they are pressed, and shows none; an interrupt is one, so that nobody dies
// and leaves the terminal so.
class Keys {
 public:
  Keys();
  ~Keys();
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  // The next key, 0 after `patience`, or 'q' for an interrupt and the end of the input.
  static char Wait(absl::Duration patience);

 private:
  std::optional<termios> before_;  // Unset: standard input is no terminal of ours.
};

}  // namespace epd::cli
