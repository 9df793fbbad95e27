// The table behind Settings: each row is a name, how a value is written and where it goes, a default and
// what it is for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/node/settings/settings.h"

namespace epd {

struct SettingKind {
  std::string expected;  // What a value looks like, for people.
  // Puts the value into its member; false: it is not what is expected.
  std::function<bool(const std::string& value, Settings& settings)> store;
};

struct SettingRow {
  std::string name;
  SettingKind kind;
  std::string default_value;
  std::string help;
  bool live = false;  // Taken from the file on SIGHUP; the others need a restart.
};

// All settings, in the order of --help.
std::vector<SettingRow> SettingTable(const MachineFacts& facts);

}  // namespace epd
