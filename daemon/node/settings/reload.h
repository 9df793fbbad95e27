// Which settings a running epd takes over when its file is read again.
#pragma once

#include <string>
#include <vector>

#include "daemon/node/settings/settings.h"

namespace epd {

// Names of settings whose value in the file has changed.
struct Reload {
  std::vector<std::string> taken;
  std::vector<std::string> need_restart;
};

// Takes those of `next` that may change while epd runs (SettingRow::live) over into `current`; the
// others stay as they are.
Reload TakeOver(const ParsedSettings& next, const MachineFacts& facts, ParsedSettings& current);

}  // namespace epd
