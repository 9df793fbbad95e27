// The table behind Settings: each row is a name, how a value is written and where it goes, a default and
// what it is for.
#pragma once

#include <cstdint>
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

// Of staging_bytes, where `memory_bytes` are there: a quarter, and at most half of what is left beside 128 MiB for epd, its worker and
// clients.
uint64_t DefaultStagingBytes(uint64_t memory_bytes);

}  // namespace epd
