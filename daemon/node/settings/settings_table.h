// The table behind Settings: each row is a name, a field, a default and what it is for.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/settings/settings.h"

namespace epd {

// How a value is written and where it goes.
struct TextField {
  std::string Settings::*field;
};
struct ChoiceField {
  std::string Settings::*field;
  std::vector<std::string> choices;
};
struct CountField {
  uint64_t Settings::*field;
  uint64_t min;
  uint64_t max;
};
struct BytesField {  // "2GiB", "512MiB", "1048576"
  uint64_t Settings::*field;
  uint64_t min;
};
struct DevicesField {  // "auto", "none", "0,1"
  CudaDevices Settings::*field;
};
struct DurationField {  // "250ms", "10s", "5m"
  absl::Duration Settings::*field;
  absl::Duration min;
};

struct SettingRow {
  std::string name;
  std::variant<TextField, ChoiceField, CountField, BytesField, DevicesField, DurationField> field;
  std::string default_value;
  std::string help;
};

// All settings, in the order of --help.
std::vector<SettingRow> SettingTable(const MachineFacts& facts);

// "duration", "bytes", ...: what a value of this row looks like.
std::string Expected(const SettingRow& row);

// Parses `value` into the row's field.
//   INVALID_ARGUMENT  "got '...', expected ..."
absl::Status Assign(const SettingRow& row, const std::string& value, Settings& settings);

}  // namespace epd
