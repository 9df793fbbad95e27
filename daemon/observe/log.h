// epd's log: one line per transition, key=value.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace epd {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// One key=value. Values with spaces, quotes or control characters are quoted and escaped, so that a
// client's name cannot forge a line. Never hand in a unique id.
struct LogField {
  template <typename T>
  LogField(absl::string_view name, const T& v) : key(name), value(absl::StrCat(v)) {}
  LogField(absl::string_view name, const std::string& v) : key(name), value(v) {}

  std::string key;
  std::string value;
};

// Opens the log; before it, lines go to standard error at level info. `file` empty: standard error.
// Again: takes the new level and file. A file that was renamed or removed is opened anew by itself, which
// is how logs rotate. Thread-safe.
//   INVALID_ARGUMENT  the file cannot be opened; the log goes on as it was
absl::Status OpenLog(const std::string& level, const std::string& file);

// Writes "what key=value ...". Thread-safe, and waits for nobody: a thread writes the line, and while nobody
// takes lines only so many are kept; see log_writer.h.
void Log(LogLevel level, absl::string_view what, std::initializer_list<LogField> fields = {});

// Waits until what was logged is written, for at most `patience`. Before the process ends.
void FlushLog(absl::Duration patience);

// The last lines since OpenLog, oldest first, each with its end; what no text may hold is '?'. Thread-safe.
std::string RecentLog();
inline constexpr size_t kRecentLogBytes = 64 << 10;

// The text after time and level; for tests.
std::string FormatLine(absl::string_view what, std::initializer_list<LogField> fields);

}  // namespace epd
